"""The two hosts of a fleet with a Docker of their own each, in their networks, as on two machines.

The hosts cannot reach a package index, so their images are those of the Docker that the tests use.
"""

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.commands import checked, locked, run_command
from tests.support.docker_client import compose_config
from tests.support.dockerd import Daemon
from tests.support.fleet_lab import Host, Lab, ensure_server

STORAGE = "overlay2"
"""The storage driver whose layers two daemons can have in common."""

LINK = f"""\
umount --lazy "$1" 2>&-
exec cp --archive --link --one-file-system "$1/{STORAGE}" "$1/image" "$2"
"""
"""Gives a data directory the images of another one. A layer never changes, and all else is replaced by renaming.

A daemon mounts its data onto itself, and a link does not leave a mount.
"""


class DockerHost:
    """A host and its Docker."""

    def __init__(self, host: Host, state: Path) -> None:
        self.host = host
        self._state = state / host.name
        self._daemon = Daemon(self._state, host.namespace)

    def start(self, data: Path) -> None:
        """Start its Docker with the images of the data directory of another one, and its SSH server."""
        # of a run that was killed: its Docker still runs, and its mounts keep the directory
        self._daemon.stop()
        self._clear()
        (self._state / "data").mkdir(parents=True)
        checked("unshare", "--mount", "sh", "-c", LINK, "sh", str(data), str(self._state / "data"))
        # a new namespace may forward already, and then Docker would not close the way from neighbours to containers
        self.host.sh("echo 0 > /proc/sys/net/ipv4/ip_forward")
        self._daemon.start()
        self.host.start(server_lines=("SetEnv " + " ".join(f"{name}={one}" for name, one in self.variables.items()),))

    @property
    def variables(self) -> dict[str, str]:
        """The variables with which commands of the host use its Docker."""
        config = compose_config(self._state)
        return {"DOCKER_HOST": self._daemon.docker_host, **({"DOCKER_CONFIG": str(config)} if config else {})}

    def stop(self) -> None:
        """End its Docker, with all containers, and remove what it kept."""
        # a daemon that ends gives each of them time to stop
        if names := run_command("docker", "--host", self._daemon.docker_host, "ps", "-q").stdout.split():
            run_command("docker", "--host", self._daemon.docker_host, "kill", *names)
        self._daemon.stop()
        self._clear()

    def docker(self, *args: str) -> str:
        """Run `docker` there."""
        return checked("docker", "--host", self._daemon.docker_host, *args)

    def logs(self, container: str) -> str:
        """What a container has printed."""
        done = run_command("docker", "--host", self._daemon.docker_host, "logs", container)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def containers(self) -> dict[str, dict[str, Any]]:
        """What `docker inspect` says of each container, by its service."""
        names = self.docker("ps", "-aq", "--no-trunc").split()
        found = json.loads(self.docker("inspect", *names)) if names else []
        return {one["Config"]["Labels"]["com.docker.compose.service"]: one for one in found}

    def _clear(self) -> None:
        shutil.rmtree(self._state, ignore_errors=True)


def data_of_docker() -> Path:
    """The data directory of the tests' Docker. Raises RuntimeError if the hosts cannot have its images."""
    ensure_server()
    driver, data = checked("docker", "info", "--format", "{{.Driver}}\n{{.DockerRootDir}}").splitlines()
    if driver != STORAGE:
        raise RuntimeError(f"Docker stores images with {driver}; the hosts can have those of {STORAGE} only")
    return Path(data)


@contextmanager
def docker_hosts(lab: Lab, data: Path, state: Path) -> Iterator[tuple[DockerHost, DockerHost]]:
    """Docker on both hosts with the images of `data_of_docker`; all of it is gone after the block.

    `state` is on the file system of `data`.
    """
    state.mkdir(parents=True, exist_ok=True)
    with locked(state):
        first, second = (DockerHost(host, state) for host in lab.hosts)
        try:
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda each: each.start(data), (first, second)))
            lab.trust()
            for host in lab.hosts:
                lab.wait_for(host)
            yield first, second
        finally:
            with ThreadPoolExecutor() as pool:
                list(pool.map(DockerHost.stop, (first, second)))
