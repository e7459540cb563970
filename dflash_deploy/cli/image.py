"""`image build`, `verify`, `digest` and `sbom`: the engine's image, what it stands on and what is in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.planned import plan_of
from dflash_deploy.cli.report import HERE, Directory, Json, Report, note, table, verb

if TYPE_CHECKING:
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.plan import Plan

image = typer.Typer(help="The engine's image: build, verify, digest, sbom.", no_args_is_help=True)


@verb
def image_build(directory: Directory = HERE, as_json: Json = False) -> Report:
    """Build the image of this deployment, on the base image that .env names."""
    from dflash_deploy.deployment import hold
    from dflash_deploy.runtime.compose import ComposeRuntime

    deployment, plan = _of(directory)
    with hold(deployment, "image build"):
        ComposeRuntime(deployment, plan).build(lambda line: note(deployment.redact(line)))
    tag, base = plan.values["DFLASH_IMAGE"], plan.values["DFLASH_BASE_IMAGE"]
    shown = (f"built    {tag}", f"on       {base}", "next     dflash-deploy image verify")
    return Report({"image": tag, "base": base}, shown)


@verb
def image_verify(directory: Directory = HERE, as_json: Json = False) -> Report:
    """Look at the image and let it prove that its engine carries DFlash."""
    from dflash_deploy.errors import PreflightRefused
    from dflash_deploy.runtime.image import examine, prove, read_image

    deployment, plan = _of(directory)
    tag = plan.values["DFLASH_IMAGE"]
    facts = read_image(tag)
    checks = [*examine(facts, plan.values["DFLASH_BASE_IMAGE"], deployment.secrets.values()), prove(tag)]
    rows = table("", "what", "seen")
    for check in checks:
        rows.add_row("passed" if check.good else "FAILED", check.name, check.saw)
    bad = [check.name for check in checks if not check.good]
    failure = PreflightRefused(
        f"{tag} is not what it should be: {', '.join(bad)}", hint="`dflash-deploy image build` makes it anew"
    )
    data = {"image": tag, "checks": [{"name": one.name, "passed": one.good, "saw": one.saw} for one in checks]}
    return Report(data, (tag, rows), failure=failure if bad else None)


@verb
def image_digest(
    directory: Directory = HERE,
    pin: Annotated[bool, typer.Option("--pin", help="Write it to DFLASH_BASE_IMAGE in .env.")] = False,
    as_json: Json = False,
) -> Report:
    """Say which digest the base image's tag means now; --pin keeps to it, whatever the tag becomes."""
    from dflash_deploy.deployment import hold
    from dflash_deploy.runtime.image import pinned

    deployment, plan = _of(directory)
    tag = plan.values["DFLASH_BASE_IMAGE"]
    found = pinned(tag)
    if pin and found != deployment.values.get("DFLASH_BASE_IMAGE"):
        with hold(deployment, "image digest"):
            deployment.with_values({"DFLASH_BASE_IMAGE": found})
    said = "pinned   in .env" if pin else "next     dflash-deploy image digest --pin"
    return Report({"tag": tag, "digest": found.rsplit("@", 1)[1], "pinned": pin}, (f"base     {found}", said))


@verb
def image_sbom(
    directory: Directory = HERE,
    out: Annotated[Path | None, typer.Option(help="Write it there, instead of to standard output.")] = None,
) -> Report:
    """The image's bill of materials: CycloneDX 1.6, JSON."""
    from dflash_deploy.deployment.files import PUBLIC, write_atomically
    from dflash_deploy.runtime.image import bill_of

    _, plan = _of(directory)
    text = bill_of(plan.values["DFLASH_IMAGE"])
    if out is None:
        typer.echo(text)
        return Report()
    write_atomically(out, f"{text}\n", mode=PUBLIC)
    return Report({"file": str(out)}, (f"written  {out}",))


def _of(directory: Path) -> tuple[Deployment, Plan]:
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.errors import NotPossible

    deployment = Deployment.existing(directory)
    plan = plan_of(deployment)
    if plan.runtime != "compose":
        raise NotPossible("this deployment runs without an image", hint="init --runtime compose")
    return deployment, plan


for name, command in (
    ("build", image_build),
    ("verify", image_verify),
    ("digest", image_digest),
    ("sbom", image_sbom),
):
    image.command(name)(command)
