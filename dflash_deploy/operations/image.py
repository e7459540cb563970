"""`image`: the image of the engine, built, verified, pinned, and its bill of materials."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.lock import command_lock
from dflash_deploy.document import Documented, Hidden, Keywords
from dflash_deploy.errors import NotPossible, PreflightRefused
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.plan.result import Plan
from dflash_deploy.planning import plan_of
from dflash_deploy.runtime.compose import ComposeRuntime
from dflash_deploy.runtime.docker import ImageCheck, examine, read_image, verify_engine, with_digest
from dflash_deploy.serve.settings import Settings


@dataclass(frozen=True)
class Image(Documented):
    """The image that `image build` built."""

    image: str
    """Tag of the image."""
    base: str
    """Base image that it is built on."""


def build_image(directory: Path, *, reporter: Reporter = SILENT) -> Image:
    """Build the image of a deployment, on the base image that `.env` names. Raises NotPossible, EngineNotReady."""
    deployment, plan = _of(directory)
    with command_lock(deployment, "image build"):
        ComposeRuntime(deployment, plan).build(lambda line: reporter.note(deployment.redact(line)))
    return Image(plan.settings.dflash_image, plan.settings.dflash_base_image)


@dataclass(frozen=True)
class Verified(Documented):
    """What `image verify` found."""

    image: str
    """Tag of the image."""
    checks: tuple[ImageCheck, ...]
    """All checks, in the order in which they ran."""

    @property
    def failure(self) -> PreflightRefused | None:
        """The checks that failed, as an error; `None` if all passed."""
        bad = [check.name for check in self.checks if not check.passed]
        if not bad:
            return None
        return PreflightRefused(
            f"{self.image} failed: {', '.join(bad)}", hint="`dflash-deploy image build` rebuilds it"
        )


def verify_image(directory: Path) -> Verified:
    """Examine the image of a deployment and let it prove that its engine carries DFlash. Raises NotPossible."""
    deployment, plan = _of(directory)
    tag = plan.settings.dflash_image
    facts = read_image(tag)
    return Verified(
        tag, (*examine(facts, plan.settings.dflash_base_image, deployment.secrets.values()), verify_engine(tag))
    )


@dataclass(frozen=True)
class Digest(Documented):
    """What the tag of the base image means now."""

    tag: str
    """The base image as `.env` has it."""
    digest: Annotated[str, Keywords(pattern="^sha256:[0-9a-f]{64}$")]
    """Digest of the base image."""
    pinned: bool
    """Whether `--pin` was given: then `.env` has the digest."""
    reference: Hidden[str]
    """The base image by its digest."""


def digest(directory: Path, *, pin: bool = False) -> Digest:
    """Look up the digest of the base image; `pin` writes it to `.env`. Raises NotPossible, EngineNotReady."""
    deployment, plan = _of(directory)
    tag = plan.settings.dflash_base_image
    found = with_digest(tag)
    if pin and found != deployment.values.get(Settings.dflash_base_image.name):
        with command_lock(deployment, "image digest"):
            deployment.with_values({Settings.dflash_base_image.name: found})
    return Digest(tag, found.rsplit("@", 1)[1], pin, found)


def _of(directory: Path) -> tuple[Deployment, Plan]:
    deployment = Deployment.existing(directory)
    plan = plan_of(deployment)
    if plan.runtime != "compose":
        raise NotPossible(
            "this deployment runs without an image", hint="`dflash-deploy init --force --runtime compose`"
        )
    return deployment, plan
