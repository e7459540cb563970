"""An image in Docker: its configuration, its origin, its contents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from docker.errors import DockerException, ImageNotFound

from dflash_deploy.errors import DownloadFailed, EngineMissing
from dflash_deploy.runtime.container_job import ContainerJob, first_line, run_job
from dflash_deploy.runtime.docker_api import docker_client

if TYPE_CHECKING:
    from dflash_deploy.redact import Secret

SBOM = "/opt/dflash/sbom.cdx.json"
ENTRY_POINT = ("python3", "-m", "dflash_deploy.serve")
BASE_LABEL = "org.opencontainers.image.base.name"


@dataclass(frozen=True)
class ImageFacts:
    """An image's configuration and history, as `docker image inspect` and `docker history` show them."""

    config: Mapping[str, Any]
    history: tuple[str, ...]


@dataclass(frozen=True)
class ImageCheck:
    """One check of an image: whether it is good, and what was found."""

    name: str
    good: bool
    saw: str


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
    yield ImageCheck("base image", built_on == base, built_on or "not stated")
    text = "\n".join([*map(str, facts.config.get("Env") or ()), *facts.history, str(facts.config.get("Labels"))])
    leaks = sum(1 for secret in secrets if secret.reveal() and secret.reveal() in text)
    yield ImageCheck("secrets", leaks == 0, f"{leaks} in variables, labels or history" if leaks else "none")


def verify_engine(tag: str) -> ImageCheck:
    """Run a container of the image that checks whether its engine supports DFlash."""
    done = run_job(
        ContainerJob(tag, ("-m", "dflash_deploy.serve.verify"), entry_point="python3"), lambda line: None, fetch=False
    )
    return ImageCheck("drafter", done.status == 0, done.last if done.status else "its engine supports DFlash")


def sbom_of(tag: str) -> str:
    """Return the SBOM in the image, CycloneDX as JSON. Raises EngineMissing if it has none."""
    lines: list[str] = []
    done = run_job(ContainerJob(tag, (SBOM,), entry_point="cat"), lines.append, fetch=False)
    if done.status:
        raise EngineMissing(f"{tag} has no SBOM", hint="build it again with `dflash-deploy image build`")
    return "\n".join(lines)


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
