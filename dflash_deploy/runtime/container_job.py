"""A command in a container of its own: no network, no capabilities, nothing writable but its aim."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from docker.errors import DockerException, ImageNotFound
from docker.types import Mount

from dflash_deploy.errors import EngineMissing
from dflash_deploy.runtime.docker_api import docker_client
from dflash_deploy.runtime.protocol import Narrate


@dataclass(frozen=True)
class ContainerJob:
    """What is run: an image, the words for its entry point, or for `entry_point` where that is another.

    `mounts` maps a path of the container to one of this machine and whether it may be written.
    """

    image: str
    command: tuple[str, ...]
    mounts: Mapping[str, tuple[Path, bool]] = field(default_factory=dict)
    entry_point: str | None = None


@dataclass(frozen=True)
class JobResult:
    """How it ended: the exit status, and the last lines that it wrote."""

    status: int
    lines: tuple[str, ...]

    @property
    def last(self) -> str:
        """What it said last."""
        return self.lines[-1] if self.lines else "it said nothing"


def run_job(tool: ContainerJob, narrate: Narrate, *, fetch: bool = True) -> JobResult:
    """Run it to its end, handing on its lines.

    Raises EngineMissing where no container engine answers, or the image is not here and cannot be fetched.
    """
    client = docker_client()
    try:
        client.images.get(tool.image)
    except ImageNotFound:
        if not fetch:
            raise EngineMissing(
                f"the image {tool.image} is not on this machine", hint="`dflash-deploy image build` makes it"
            ) from None
        narrate(f"fetching {tool.image}")
        try:
            client.images.pull(tool.image)
        except DockerException as problem:
            raise EngineMissing(
                f"the image {tool.image} could not be fetched: {first_line(problem)}",
                hint="see to the network, or name an image that this machine has: --image IMAGE",
            ) from None
    mounts = [
        Mount(inside, str(place.resolve()), type="bind", read_only=not writable)
        for inside, (place, writable) in tool.mounts.items()
    ]
    container = client.containers.create(
        tool.image,
        list(tool.command),
        entrypoint=tool.entry_point,
        mounts=mounts,
        user=f"{os.getuid()}:{os.getgid()}",
        environment={"HOME": "/tmp", "USER": "dflash", "HF_HUB_OFFLINE": "1"},  # noqa: S108 - the container's own
        network_mode="none",
        read_only=True,
        tmpfs={"/tmp": ""},  # noqa: S108 - the container's own
        cap_drop=["ALL"],
        security_opt=["no-new-privileges:true"],
        init=True,
    )
    tail: deque[str] = deque(maxlen=20)
    try:
        container.start()
        for raw in container.logs(stream=True, follow=True):
            if line := raw.decode("utf-8", "replace").strip():
                tail.append(line)
                narrate(line)
        return JobResult(container.wait()["StatusCode"], tuple(tail))
    except DockerException as problem:
        raise EngineMissing(
            f"{tool.image} could not be run: {first_line(problem)}", hint="`dflash-deploy doctor` looks at the engine"
        ) from None
    finally:
        with contextlib.suppress(DockerException):
            container.remove(force=True)


def first_line(problem: Exception) -> str:
    """An error of the engine's API, without what follows its first line."""
    return (str(problem).splitlines() or [type(problem).__name__])[0]
