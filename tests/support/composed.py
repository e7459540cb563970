"""A deployment under Compose that tests share: the real image on the stand-in base, the real engine inside."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.runtime.compose import compose_command
from tests.support.cli import dflash, edit_env
from tests.support.ports import free_run

IMAGE = "dflash-deploy/vllm:under-test"

# The published one, and those that router and two engines would have without containers: no other test gets them.
PORTS = 5


def docker(*args: str) -> str:
    """What the command writes; it must succeed."""
    done = subprocess.run(["docker", *args], capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@contextmanager
def composed(
    directory: Path, base_image: str, *options: str, image: str = IMAGE, owner: int | None = None, **edited: str
) -> Iterator[Deployment]:
    """`init` and `up` in a directory, the image made of these very sources; `down` at the end.

    `owner` gets `.env` and so becomes the user of the container; only root can give files away. `edited` are lines of
    `.env` that `init` has no option for.
    """
    told = ("--profile", "cpu", "--runtime", "compose", "--port", str(free_run(PORTS)), *options)
    dflash("init", *told, at=directory).succeeded()
    edit_env(directory, DFLASH_BASE_IMAGE=base_image, DFLASH_IMAGE=image, **edited)
    if owner is not None:
        os.chown(directory / ".env", owner, owner)
    # one of an earlier run may be of other sources
    subprocess.run(["docker", "image", "rm", "--force", image], check=False, capture_output=True)
    try:
        dflash("up", at=directory).succeeded()
        yield Deployment(directory)
    finally:
        dflash("down", at=directory).succeeded()


def container_of(deployment: Deployment) -> str:
    """The identity of the engine's container."""
    return docker(
        "ps", "-aq", "--no-trunc", "--filter", f"label=com.docker.compose.project={deployment.project_name}"
    ).strip()


def inspected(deployment: Deployment) -> dict[str, Any]:
    """What `docker inspect` says of the engine's container."""
    found: dict[str, Any] = json.loads(docker("inspect", container_of(deployment)))[0]
    return found


def is_new(state: Mapping[str, Any], before: str) -> bool:
    """Whether the container whose `State` this is runs, and was started since."""
    return bool(state["Running"] and state["StartedAt"] != before)


def closed_in(container: dict[str, Any]) -> None:
    """The container can do little: what `docker inspect` says of its rights, its mounts and its ports."""
    host = container["HostConfig"]
    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert host["NetworkMode"] != "host"
    assert host["IpcMode"] != "host"
    assert {binding["HostIp"] for ports in host["PortBindings"].values() for binding in ports} == {"127.0.0.1"}
    mounts = {mount["Destination"]: mount for mount in container["Mounts"]}
    assert not mounts["/models/target"]["RW"]
    assert not mounts["/models/drafter"]["RW"]


def shown_by_docker(deployment: Deployment, image: str = IMAGE) -> dict[str, str]:
    """Each place where Docker or Compose shows or keeps something of the deployment, with its text."""
    container, project = container_of(deployment), deployment.project_name
    config = subprocess.run(compose_command(deployment, "config"), capture_output=True, text=True, check=True)
    return {
        "inspect": docker("inspect", container),
        "inspect of the image": docker("image", "inspect", image),
        "inspect of the volume": docker("volume", "inspect", f"{project}_cache"),
        "inspect of the network": docker("network", "inspect", f"{project}_default"),
        "logs": docker("logs", container),
        "ps": docker("ps", "-a", "--no-trunc"),
        "top": docker("top", container, "-eo", "pid,args"),
        "diff": docker("diff", container),
        "history": docker("history", "--no-trunc", image),
        "events": docker("events", "--since", "1h", "--until", "0s", "--filter", f"container={container}"),
        "compose config": config.stdout,
        "written by the engine": docker("exec", container, "tar", "-cf", "-", "/cache", "/tmp", "/dev/shm"),
        **{
            str(path): path.read_text(errors="replace")
            for path in deployment.directory.rglob("*")
            if path.is_file() and path.name != ".env"
        },
    }


def key_is_hidden(deployment: Deployment, image: str = IMAGE) -> None:
    """The key is in none of these places, each of which says something."""
    shown = shown_by_docker(deployment, image)
    # a place that says nothing was perhaps not looked at; nothing has changed in a read-only root, and a lock is empty
    silent = {Path(place).name for place, text in shown.items() if not text}
    assert silent <= {"diff", "lock"}
    key = Deployment(deployment.directory).key.reveal()
    assert [place for place, text in shown.items() if key in text] == []
