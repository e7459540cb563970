"""`profiles list` and `profiles show`: the hardware that the catalog knows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli import options
from dflash_deploy.cli.command import command, examples
from dflash_deploy.cli.planned import recipe_lines
from dflash_deploy.cli.shown import Grid, Report, Shown

if TYPE_CHECKING:
    from dflash_deploy.catalog.hardware import Profile
    from dflash_deploy.catalog.read import Settings

_MAKER = re.compile(r"NVIDIA (?:GeForce )?")  # left out of titles in the list, which fit one line without it

profiles = typer.Typer(
    help="Hardware that the catalog knows: list, show.",
    invoke_without_command=True,
    rich_markup_mode=None,
    epilog=examples("profiles", "profiles show rtx-3090"),
)


@profiles.callback()
def _list_them(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        profiles_list(shared=context)


@command(examples=("profiles list", "profiles list --json"))
def profiles_list() -> Report:
    """List hardware profiles, and which one fits this machine."""
    from dflash_deploy.operations.models import profiles

    found = profiles()
    drawn = Grid("profile", "for", "model", "evidence", wraps=("for",))
    for fit in found.profiles:
        drawn.add_row(fit.name, _MAKER.sub("", fit.title), fit.pair, fit.evidence)
    fitting = ", ".join(fit.name for fit in found.profiles if fit.fits) or "none of them"
    hint = "dflash-deploy profiles show NAME   why it does not fit; its settings"
    return Report(found, (drawn, "", f"fits this machine   {fitting}", hint))


@command(examples=("profiles show rtx-3090", "profiles show dgx-spark-x2 --json"))
def profiles_show(name: Annotated[str, typer.Argument(help="A profile.", autocompletion=options.profiles)]) -> Report:
    """Show one profile: hardware, evidence, engines, every setting with its reason, and recipes."""
    from dflash_deploy.operations.models import profile as run_profile
    from dflash_deploy.operations.models import profile_fit

    profile, engines, recipes = run_profile(name)
    why_not = profile_fit(profile).why_not
    fits = f"fits      {f'not this machine: {why_not}' if why_not else 'this machine'}"
    shown: list[Shown] = [*_facts(profile), fits, "", "settings of every engine", *_settings(profile.settings)]
    for choice, engine in zip(profile.engines, engines, strict=True):
        released = f", released {engine.released}" if engine.released else ""
        shown += ["", f"{engine.name}: {engine.title}{released} ({engine.evidence.state}: {engine.evidence.by})"]
        shown += list(_settings(choice.settings))
        shown += [f"  known defect: {bug.what} -> {bug.workaround} [{bug.source}]" for bug in engine.open_bugs]
    if recipes:
        shown += ["", "recipes (`--recipe NAME`; speeds are what others published)", *recipe_lines(recipes)]
    return Report(profile.model_dump(mode="json"), tuple(shown))


def _facts(profile: Profile) -> Iterator[str]:
    from dflash_deploy.catalog.load import load_catalog
    from dflash_deploy.plan.choose import best

    hardware, match = profile.hardware, profile.match
    yield f"{profile.name}: {profile.title}"
    yield f"known     {profile.evidence.state}: {profile.evidence.by}"
    if match.gpus:
        machines = f" in each of {hardware.machines} machines" if hardware.machines > 1 else ""
        unified = ", shared with the system" if hardware.unified else ""
        kind = f"compute capability {match.compute_capability}"
        yield f"GPUs      {match.gpus}{machines}, {kind}, each {hardware.memory_gib:g} GiB{unified}"
        yield f"          {hardware.bandwidth:g} GB/s, {hardware.tflops:g} TFLOPS in BF16 ({hardware.source})"
    if profile.speed:
        yield f"speed     {profile.speed} (tokens/s at concurrency 1)"
    yield f"model     {next(best(profile, load_catalog())).pair.name}"


def _settings(settings: Settings) -> Iterator[str]:
    for name, chosen in settings.items():
        yield f"  {name}={chosen.value}"
        yield f"      {chosen.reason}" + (f" [{chosen.source}]" if chosen.source else "")


profiles.command("list")(profiles_list)
profiles.command("show")(profiles_show)
