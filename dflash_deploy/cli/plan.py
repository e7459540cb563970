"""`plan`: what would be done, and why."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.planned import make_plan
from dflash_deploy.cli.report import HERE, Directory, Json, Report, verb

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dflash_deploy.plan import Plan


@verb
def plan(
    directory: Directory = HERE,
    profile: Annotated[str | None, typer.Option(help="Hardware profile; recognised where left out.")] = None,
    pair: Annotated[str | None, typer.Option(help="Model pair, where not the profile's own.")] = None,
    as_json: Json = False,
) -> Report:
    """Show each setting with its origin and reason, and the exact engine command. Writes nothing."""
    from dflash_deploy.plan import Choice, engine_command
    from dflash_deploy.project import Deployment

    asked_for = profile or pair
    edited = {} if asked_for or not Deployment(directory).exists() else Deployment.existing(directory).values
    made = make_plan(Choice(profile, pair, edited=edited))
    command = engine_command(made)
    data = {
        "profile": made.profile.name,
        "engine": made.engine.name,
        "pair": made.pair.name,
        "runtime": made.runtime,
        "command": command,
        "settings": made.setting_rows(),
        "memory": _memory(made),
        "speed": [speed.model_dump() for speed in made.pair.speeds],
    }
    shown: tuple[RenderableType, ...] = (
        f"profile  {made.profile.name}: {made.profile.title}",
        f"         {made.profile.evidence.state}: {made.profile.evidence.by}",
        f"pair     {made.pair.title}",
        f"engine   vLLM {made.engine.version}, {made.runtime}",
        "",
        *_settings(made),
        "",
        f"command  {shlex.join(command)}",
        *_speeds(made),
    )
    return Report(data, shown, made.findings)


def _memory(made: Plan) -> dict[str, int]:
    """What is known of memory before anything is loaded: the weights, in bytes."""
    drafter = made.pair.drafter.bytes if made.drafting else 0
    return {"target_bytes": made.pair.target.bytes, "drafter_bytes": drafter}


def _settings(made: Plan) -> Iterator[RenderableType]:
    """One setting a line, as it stands in `.env`, its reason below it: names and values can be copied whole."""
    from rich.text import Text

    for setting in made.settings:
        if setting.value:
            yield Text.assemble((f"{setting.name}={setting.value}", "bold"), (f"  ({setting.origin})", "cyan"))
            yield Text(f"    {setting.reason}", style="dim")


def _speeds(made: Plan) -> list[str]:
    """Published figures of this pair, each with its source; nothing is promised for this machine."""
    return [
        f"speed    concurrency {speed.concurrency}: {speed.plain} -> {speed.dflash} tokens/s ({speed.source})"
        for speed in made.pair.speeds
    ]
