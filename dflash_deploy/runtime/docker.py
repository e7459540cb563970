"""Docker's API: a client, the log of a container, one command in a container, and an image.

The client uses the Docker that the `docker` command uses. A log is read in bounded memory: docker-py returns the whole
log at once, or a stream that waits without a timeout. A command runs in a container without network and capabilities;
only named mounts are writable. An image has its configuration, its origin and its contents.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Timer
from typing import TYPE_CHECKING, Any

import docker
import requests
from docker.errors import DockerException, ImageNotFound, create_api_error_from_http_exception
from docker.types import DeviceRequest, Mount
from docker.utils.socket import SocketError

from dflash_deploy.document import Documented
from dflash_deploy.errors import DownloadFailed, EngineMissing
from dflash_deploy.host.ask import LONGEST_WORDS, container_engine
from dflash_deploy.runtime.log import shortened

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

    from dflash_deploy.redact import Secret
    from dflash_deploy.runtime.protocol import Narrate


def docker_client() -> docker.DockerClient:
    """Return a client of Docker's API. Raises EngineMissing if Docker does not respond."""
    engine = container_engine()
    try:
        return docker.DockerClient(base_url=engine.host or None)
    except DockerException as problem:
        raise EngineMissing(
            f"Docker's API at {engine.host} does not respond: {str(problem)[:LONGEST_WORDS]}",
            hint="check `docker context inspect` and DOCKER_HOST",
        ) from None


_BLOCK = 64 * 1024
_HEADER = 8  # bytes before each frame: the stream, three zeros, and the frame's size (Docker's API, ContainerAttach)


def read_container_log(api: docker.APIClient, identity: str, *, since: int | None, tty: bool) -> bytes:
    """Return the log of a container with time stamps; of a long one the beginning and the end.

    `since` is in seconds since 1970. A container with a terminal (`tty`) has no frames. Raises docker.errors.APIError,
    and OSError if the connection breaks or pauses for longer than the client's timeout.
    """
    asked: dict[str, int | str] = {"stdout": 1, "stderr": 1, "timestamps": 1, "follow": 0, "tail": "all"}
    if since is not None:
        asked["since"] = since
    url = f"{api.base_url}/v{api.api_version}/containers/{identity}/logs"
    with closing(api.get(url, params=asked, timeout=api.timeout, stream=True)) as answer:
        try:
            answer.raise_for_status()
        except requests.HTTPError as problem:
            create_api_error_from_http_exception(problem)
        chunks = answer.iter_content(_BLOCK)
        return shortened(chunks if tty else frames_of(chunks))


def frames_of(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the content of the frames that chunks of any size contain, without their headers."""
    header, left = b"", 0
    for chunk in chunks:
        at = 0
        while at < len(chunk):
            if left:
                part = chunk[at : at + left]
                left -= len(part)
                yield part
            else:
                part = chunk[at : at + _HEADER - len(header)]
                header += part
                if len(header) == _HEADER:
                    left, header = int.from_bytes(header[4:], "big"), b""
            at += len(part)


LONGEST_LINE = 1 << 16  # bytes of a line; what is longer counts as several


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
    """The lines of standard output and standard error, without empty ones; a chunk may end within a line."""
    begun = [b"", b""]
    for chunks in written:
        for number, chunk in enumerate(chunks):
            *whole, rest = (begun[number] + (chunk or b"")).split(b"\n")
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


ENTRY_POINT = ("python3", "-m", "dflash_deploy.serve")
BASE_LABEL = "org.opencontainers.image.base.name"


@dataclass(frozen=True)
class ImageFacts:
    """An image's configuration and history, as `docker image inspect` and `docker history` show them."""

    config: Mapping[str, Any]
    history: tuple[str, ...]


@dataclass(frozen=True)
class ImageCheck(Documented):
    """One check of an image."""

    name: str
    """What was checked."""
    passed: bool
    """Whether the check passed."""
    saw: str
    """What was found."""


def read_image(tag: str) -> ImageFacts:
    """Return Docker's facts about an image. Raises EngineMissing if it has no image of that name."""
    try:
        image = docker_client().images.get(tag)
        return ImageFacts(image.attrs["Config"], tuple(layer.get("CreatedBy", "") for layer in image.history()))
    except ImageNotFound:
        raise EngineMissing(
            f"the image {tag} is not on this machine", hint="build it with `dflash-deploy image build`"
        ) from None


def examine(facts: ImageFacts, base: str, secrets: Iterable[Secret]) -> Iterator[ImageCheck]:
    """Check user, entry point, health check, base image and secrets of an image without running it."""
    user = str(facts.config.get("User") or "")
    yield ImageCheck("user", user.split(":", maxsplit=1)[0] not in {"", "0", "root"}, user or "root")
    entry = tuple(facts.config.get("Entrypoint") or ())
    yield ImageCheck("entry point", entry == ENTRY_POINT, " ".join(entry) or "none")
    yield ImageCheck("health check", bool(facts.config.get("Healthcheck")), "asks the engine itself")
    built_on = (facts.config.get("Labels") or {}).get(BASE_LABEL, "")
    # a tag that was pinned since names the same image
    same = built_on in {base, base.partition("@")[0]}
    yield ImageCheck("base image", same, built_on or "not stated")
    text = "\n".join([*map(str, facts.config.get("Env") or ()), *facts.history, str(facts.config.get("Labels"))])
    leaks = sum(1 for secret in secrets if secret.reveal() and secret.reveal() in text)
    yield ImageCheck("secrets", leaks == 0, f"{leaks} in variables, labels or history" if leaks else "none")


def verify_engine(tag: str) -> ImageCheck:
    """Run a container of the image that checks whether its engine supports DFlash."""
    done = run_job(
        ContainerJob(tag, ("-m", "dflash_deploy.serve.verify"), entry_point="python3"), lambda line: None, fetch=False
    )
    return ImageCheck("drafter", done.status == 0, done.last if done.status else "its engine supports DFlash")


def with_digest(tag: str) -> str:
    """Return the tag with its digest: that of the image on this machine, else that of the registry now.

    Raises DownloadFailed if neither has it.
    """
    if "@" in tag:
        return tag
    client = docker_client()
    try:
        known = client.images.get(tag).attrs.get("RepoDigests") or []
    except ImageNotFound:
        known = []
    except DockerException as problem:
        raise EngineMissing(
            f"Docker does not respond: {first_line(problem)}", hint="start it with `systemctl start docker`"
        ) from None
    repository = tag.rsplit(":", 1)[0] if ":" in tag.rsplit("/", 1)[-1] else tag
    digests = {name.rsplit("@", 1)[1] for name in known if name.rsplit("@", 1)[0].endswith(repository)}
    if len(digests) == 1:
        return f"{tag}@{digests.pop()}"
    try:
        return f"{tag}@{client.images.get_registry_data(tag).id}"
    except DockerException as problem:
        raise DownloadFailed(
            f"the registry did not return the digest of {tag}: {first_line(problem)}",
            hint=f"run `docker pull {tag}` with a network connection, then try again",
        ) from None
