"""`image build`, `verify` and `digest`: the engine's image and its base."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dflash_deploy.cli.command import command, examples, terminal
from dflash_deploy.cli.shown import Grid, Report
from dflash_deploy.serve.settings import Settings

image = typer.Typer(
    help="The engine's image: build, verify, digest.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=examples("image build", "image digest --pin"),
)


@command(changes=True, examples=("image build", "image build --dir /srv/vision"))
def image_build(*, directory: Path) -> Report:
    """Build the image of this deployment, on the base image that .env names."""
    from dflash_deploy.operations.image import build_image

    built = build_image(directory, reporter=terminal())
    shown = (f"built    {built.image}", f"on       {built.base}", "next     dflash-deploy image verify")
    return Report(built, shown)


@command(examples=("image verify", "image verify --json"))
def image_verify(*, directory: Path) -> Report:
    """Examine the image and let it prove that its engine carries DFlash."""
    from dflash_deploy.operations.image import verify_image

    found = verify_image(directory)
    rows = Grid("", "what", "seen")
    for check in found.checks:
        rows.add_row("passed" if check.passed else "FAILED", check.name, check.saw)
    return Report(found, (found.image, rows), failure=found.failure)


@command(changes=True, examples=("image digest", "image digest --pin"))
def image_digest(
    pin: Annotated[bool, typer.Option("--pin", help=f"Write it to {Settings.dflash_base_image} in .env.")] = False,
    *,
    directory: Path,
) -> Report:
    """Show the digest that the base image's tag means now; --pin keeps it, even if the tag moves."""
    from dflash_deploy.operations.image import digest

    found = digest(directory, pin=pin)
    said = "pinned   in .env" if pin else "next     dflash-deploy image digest --pin"
    return Report(found, (f"base     {found.reference}", said))


image.command("build")(image_build)
image.command("verify")(image_verify)
image.command("digest")(image_digest)
