"""`profiles list` and `profiles show`: the hardware that the catalog knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.report import Json, Report, table, verb

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dflash_deploy.catalog import Profile
    from dflash_deploy.catalog.schema import Settings

profiles = typer.Typer(help="Hardware that the catalog knows: list, show.", invoke_without_command=True)


@profiles.callback()
def _list_them(context: typer.Context, as_json: Json = False) -> None:
    if as_json and context.invoked_subcommand is not None:
        raise typer.BadParameter("write --json behind list or show")
    if context.invoked_subcommand is None:
        profiles_list(as_json=as_json)


@verb
def profiles_list(as_json: Json = False) -> Report:
    """List hardware profiles, and which one fits this machine."""
    from dflash_deploy.catalog import load_catalog
    from dflash_deploy.host import read_facts
    from dflash_deploy.rules.survey import why_profile_does_not_fit

    catalog, facts = load_catalog(), read_facts()
    rows = []
    for profile in catalog.profiles.values():
        why_not = why_profile_does_not_fit(profile, facts)
        rows.append(
            {
                "name": profile.name,
                "title": profile.title,
                "pair": profile.pair,
                "engines": [choice.release for choice in profile.engines],
                "evidence": profile.evidence.state,
                "fits": not why_not,
                "why_not": why_not,
            }
        )
    drawn = table("profile", "for", "model", "known", "fits here")
    for row in rows:
        cells = (str(row[name]) for name in ("name", "title", "pair", "evidence"))
        drawn.add_row(*cells, "yes" if row["fits"] else f"no: {row['why_not']}")
    return Report(
        {"profiles": rows}, (drawn, "", "dflash-deploy profiles show NAME   its settings, each with its reason")
    )


@verb
def profiles_show(name: Annotated[str, typer.Argument(help="A profile.")], as_json: Json = False) -> Report:
    """Show one profile: hardware, evidence, engines, and every setting with its reason."""
    from dflash_deploy.catalog import load_catalog

    catalog = load_catalog()
    profile = catalog.profile(name)
    shown: list[RenderableType] = [*_facts(profile), "", "settings of every engine", *_settings(profile.settings)]
    for choice in profile.engines:
        engine = catalog.engines[choice.release]
        released = f", released {engine.released}" if engine.released else ""
        shown += ["", f"{engine.name}: {engine.title}{released} ({engine.evidence.state}: {engine.evidence.by})"]
        shown += list(_settings(choice.settings))
        shown += [
            f"  known defect: {bug.what} -> {bug.workaround} [{bug.source}]" for bug in engine.bugs if not bug.until
        ]
    return Report(profile.model_dump(mode="json"), tuple(shown))


def _facts(profile: Profile) -> Iterator[str]:
    hardware, match = profile.hardware, profile.match
    yield f"{profile.name}: {profile.title}"
    yield f"known     {profile.evidence.state}: {profile.evidence.by}"
    if match.gpus:
        machines = f" in each of {hardware.machines} machines" if hardware.machines > 1 else ""
        unified = ", shared with the system" if hardware.unified else ""
        kind = f"compute capability {match.compute_capability}"
        yield f"GPUs      {match.gpus}{machines}, {kind}, each {hardware.memory_gib:g} GiB{unified}"
        yield f"          {hardware.bandwidth:g} GB/s, {hardware.tflops:g} TFLOPS in BF16 ({hardware.source})"
    yield f"model     {profile.pair}"


def _settings(settings: Settings) -> Iterator[str]:
    for name, chosen in settings.items():
        yield f"  {name}={chosen.value}"
        yield f"      {chosen.reason}" + (f" [{chosen.source}]" if chosen.source else "")


profiles.command("list")(profiles_list)
profiles.command("show")(profiles_show)
