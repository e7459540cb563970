"""Run one command in a container without network and capabilities; only named mounts are writable."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Timer
from typing import TYPE_CHECKING

from docker.errors import DockerException, ImageNotFound
from docker.types import DeviceRequest, Mount
from docker.utils.socket import SocketError

from dflash_deploy.errors import EngineMissing
from dflash_deploy.runtime.docker_api import docker_client

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

    from dflash_deploy.runtime.protocol import Narrate

LONGEST_LINE = 1 << 16
"""Bytes of a line; what is longer counts as several."""


@dataclass(frozen=True)
class ContainerJob:
    """What to run: an image, the arguments of its entry point, and another `entry_point` if it is given.

    `mounts` maps a path of the container to a path of this machine and whether it is writable. `gpus`: the container
    sees all GPUs. `seconds` is the most time that it gets; `None`: any.
    """

    image: str
    command: tuple[str, ...]
    mounts: Mapping[str, tuple[Path, bool]] = field(default_factory=dict)
    entry_point: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    gpus: bool = False
    seconds: float | None = None


@dataclass(frozen=True)
class JobResult:
    """The exit status and the last lines of output. `in_time`: it ended before it was killed for its time."""

    status: int
    lines: tuple[str, ...]
    in_time: bool = True

    @property
    def last(self) -> str:
        """The last line of output."""
        return self.lines[-1] if self.lines else "no output"


def run_job(job: ContainerJob, narrate: Narrate, *, fetch: bool = True) -> JobResult:
    """Run the job to its end and pass its lines to `narrate`.

    Raises EngineMissing if Docker does not respond, or the image is missing and cannot be pulled.
    """
    client = docker_client()
    _have(client, job.image, narrate, fetch=fetch)
    container = _create(client, job)
    tail: deque[str] = deque(maxlen=20)
    try:
        # attached before it starts: who follows its log while it ends may not get the last of it
        written = container.attach(stream=True, demux=True)
        container.start()
        with _killed_after(container, job.seconds) as late:
            for line in _lines(written):
                tail.append(line)
                narrate(line)
            status = container.wait()["StatusCode"]
        return JobResult(status, tuple(tail), in_time=not late.is_set())
    except (DockerException, SocketError) as problem:
        raise EngineMissing(
            f"failed to run {job.image}: {first_line(problem)}", hint="check Docker with `dflash-deploy doctor`"
        ) from None
    finally:
        with contextlib.suppress(DockerException):
            container.remove(force=True)


def _lines(written: Iterable[tuple[bytes | None, bytes | None]]) -> Iterator[str]:
    """The lines that are not empty of pieces of standard output and standard error, which end anywhere."""
    begun = [b"", b""]
    for pieces in written:
        for number, piece in enumerate(pieces):
            *whole, rest = (begun[number] + (piece or b"")).split(b"\n")
            if len(rest) > LONGEST_LINE:
                whole, rest = [*whole, rest], b""
            begun[number] = rest
            yield from filter(None, map(_text, whole))
    yield from filter(None, map(_text, begun))


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").strip()


def _have(client: DockerClient, image: str, narrate: Narrate, *, fetch: bool) -> None:
    """Pull the image if it is not on this machine and may be fetched."""
    try:
        client.images.get(image)
    except ImageNotFound:
        if not fetch:
            raise EngineMissing(
                f"the image {image} is not on this machine", hint="build it with `dflash-deploy image build`"
            ) from None
        narrate(f"pulling {image}")
        try:
            client.images.pull(image)
        except DockerException as problem:
            raise EngineMissing(
                f"failed to pull the image {image}: {first_line(problem)}",
                hint="check the network, or name an image on this machine with `--image IMAGE`",
            ) from None


def _create(client: DockerClient, job: ContainerJob) -> Container:
    mounts = [
        Mount(inside, str(place.resolve()), type="bind", read_only=not writable)
        for inside, (place, writable) in job.mounts.items()
    ]
    return client.containers.create(
        job.image,
        list(job.command),
        entrypoint=job.entry_point,
        mounts=mounts,
        user=f"{os.getuid()}:{os.getgid()}",
        environment={
            **job.environment,
            "HOME": "/tmp",  # noqa: S108 - the container's own
            "USER": "dflash",
            "HF_HUB_OFFLINE": "1",
        },
        device_requests=[DeviceRequest(count=-1, capabilities=[["gpu"]])] if job.gpus else None,
        network_mode="none",
        read_only=True,
        tmpfs={"/tmp": ""},  # noqa: S108 - the container's own
        cap_drop=["ALL"],
        security_opt=["no-new-privileges:true"],
        init=True,
    )


@contextlib.contextmanager
def _killed_after(container: Container, seconds: float | None) -> Iterator[Event]:
    """Kill the container if the block takes longer; the event says whether that happened."""
    late = Event()

    def kill() -> None:
        late.set()
        # it may have ended meanwhile
        with contextlib.suppress(DockerException):
            container.kill()

    timer = Timer(seconds, kill) if seconds is not None else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield late
    finally:
        if timer is not None:
            timer.cancel()


def first_line(problem: Exception) -> str:
    """Return the first line of an error of Docker's API."""
    return (str(problem).splitlines() or [type(problem).__name__])[0]
