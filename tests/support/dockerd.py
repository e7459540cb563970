"""A Docker daemon of our own, which shares nothing with another one on the machine.

Its socket, storage, containerd namespace, bridge and address pool are its own, and it leaves Docker's chains in the
packet filter alone. Published ports go through its user-space proxy. What stays after it is IP forwarding, which it
switches on as every Docker daemon does.
"""

import hashlib
import json
import shutil
import signal
import subprocess
import tempfile
from ipaddress import IPv4Network
from pathlib import Path

from tests.support.bridge import Bridge
from tests.support.commands import checked, command_environment, last_lines, run_command, wait_until
from tests.support.docker_client import engine_answers
from tests.support.procfs import Process, family_of, kill, mount_points

START_SECONDS = 300.0
SHUTDOWN_SECONDS = 10  # how long the daemon gives its containers to stop
STOP_SECONDS = 40.0

# The longest path that the daemon makes in its exec root, and the room that a unix socket's address has for it.
_LONGEST_SOCKET = "exec/containerd/containerd-debug.sock"
_SOCKET_LIMIT = 107


class Daemon:
    """The daemon that lives in one state directory: started, found again by another process, and ended.

    In a network `namespace` it is alone, and does what Docker does on a machine: its own bridge and packet filter.
    """

    def __init__(self, state: Path, namespace: str = "") -> None:
        digest = hashlib.sha256(str(state).encode()).hexdigest()[:8]
        self.state = state
        self.docker_host = f"unix://{_run_directory(state, digest) / 'docker.sock'}"
        self._run = _run_directory(state, digest)
        self._data = state / "data"
        self._log = state / "dockerd.log"
        self._namespace = f"dflash-{digest}"
        self._network = namespace
        self._bridge = None if namespace else Bridge(f"dfl-{digest}", record=state / "network")
        self._process: subprocess.Popen[bytes] | None = None

    def answers(self) -> bool:
        """Whether the daemon runs and takes requests."""
        return (self._run / "docker.sock").exists() and engine_answers(self.docker_host)

    def start(self) -> None:
        """Start the daemon and return once it answers; leave nothing behind where it does not."""
        self.stop()
        try:
            self._run.mkdir(mode=0o700, parents=True, exist_ok=True)
            pool = self._bridge.create() if self._bridge else None
            if self._bridge and self._bridge.moved:
                # else the engine gives the bridge the address of the pool before, which no rule lets out
                shutil.rmtree(self._data / "network", ignore_errors=True)
            process = self._launch(pool)
            wait_until(lambda: process.poll() is not None or self.answers(), START_SECONDS)
            if process.poll() is not None or not self.answers():
                log = self._log.read_text(encoding="utf-8", errors="replace")
                raise RuntimeError(f"dockerd did not come up. The end of {self._log}:\n{last_lines(log, 15)}")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> bool:
        """End the daemon and all that belongs to it; True if there was a process to end."""
        family = family_of(self._is_ours)
        daemons = [one for one in family if one.name == "dockerd"]
        for one in daemons:
            one.signal(signal.SIGTERM)
        # The daemon ends its containers and its containerd by itself. What outlives it was orphaned earlier.
        wait_until(lambda: not any(one.alive() for one in daemons), STOP_SECONDS)
        kill([*family, *family_of(self._is_ours)], STOP_SECONDS)
        if self._process is not None:
            self._process.wait(timeout=STOP_SECONDS)
            self._process = None
        for point in mount_points(self._run, self._data):
            run_command("umount", "--lazy", str(point))
        if self._bridge is not None:
            self._bridge.remove()
        # a killed containerd that nobody collects keeps its number, and the next dockerd would take it for alive
        for left in ("dockerd.pid", "docker.sock", "exec/containerd/containerd.pid"):
            (self._run / left).unlink(missing_ok=True)
        return bool(family)

    def clear(self) -> None:
        """Remove the containers and networks that a run left when it was killed; images stay."""
        docker = ("docker", "--host", self.docker_host)
        if names := checked(*docker, "ps", "-aq").split():
            checked(*docker, "rm", "--force", "--volumes", *names)
        checked(*docker, "network", "prune", "--force")

    def _is_ours(self, one: Process) -> bool:
        """Whether this is the daemon, or a containerd or shim that it started."""
        return one.name.startswith(("dockerd", "containerd")) and any(
            argument == self._namespace or Path(argument).is_relative_to(self._run) for argument in one.arguments[1:]
        )

    def _launch(self, for_projects: IPv4Network | None) -> subprocess.Popen[bytes]:
        # A configuration file of its own keeps the machine's /etc/docker/daemon.json out of it.
        configuration = self.state / "daemon.json"
        configuration.write_text(json.dumps(self._options(for_projects), indent=2), encoding="utf-8")
        # `ip netns exec` would hide the control groups too
        inside = ["nsenter", f"--net=/run/netns/{self._network}"] if self._network else []
        command = [*inside, "dockerd", "--config-file", str(configuration)]
        command += ["--pidfile", str(self._run / "dockerd.pid")]
        # The namespaces matter where dockerd finds the machine's own containerd and uses that one. As options in the
        # file, engine 20.10 knows them under no name.
        command += ["--containerd-namespace", self._namespace]
        command += ["--containerd-plugins-namespace", f"{self._namespace}-plugins"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=command_environment(),
                # Ctrl-C in the tests' terminal must not reach the daemon before the tests have cleaned up.
                start_new_session=True,
            )
        return self._process

    def _options(self, for_projects: IPv4Network | None) -> dict[str, object]:
        options: dict[str, object] = {
            "hosts": [self.docker_host],
            "data-root": str(self._data),
            "exec-root": str(self._run / "exec"),
            "shutdown-timeout": SHUTDOWN_SECONDS,
        }
        if self._bridge is None:
            return options
        return options | {
            "bridge": self._bridge.name,
            "default-address-pools": [{"base": str(for_projects), "size": 24}],
            # Two daemons that both write the chains named DOCKER undo each other's rules.
            "iptables": False,
        }


def _run_directory(state: Path, digest: str) -> Path:
    """A directory for sockets: within the state directory unless its path is too long for a unix socket."""
    within = state / "run"
    if len(str(within / _LONGEST_SOCKET)) <= _SOCKET_LIMIT:
        return within
    return Path(tempfile.gettempdir()) / f"dflash-{digest}"
