"""`plan`: what would be done, and why."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_deploy.cli.planned import (
    Engine,
    Goal,
    Length,
    Master,
    Model,
    NoDrafter,
    Profile,
    Rank,
    Runtime,
    Streams,
    make_plan,
    plan_of,
    refusal_of,
)
from dflash_deploy.cli.report import HERE, Directory, Json, Report, verb

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dflash_deploy.catalog.speeds import PublishedSpeed
    from dflash_deploy.plan import Choice, Plan

GIB = 2**30


@verb
def plan(
    directory: Directory = HERE,
    profile: Profile = None,
    model: Model = None,
    engine: Engine = None,
    goal: Goal = None,
    max_model_len: Length = None,
    concurrency: Streams = None,
    no_drafter: NoDrafter = False,
    runtime: Runtime = None,
    node_rank: Rank = None,
    master_addr: Master = None,
    as_json: Json = False,
) -> Report:
    """Show each setting with its origin and reason, the engine command, memory and speed. Writes nothing."""
    from dflash_deploy.catalog import load_catalog
    from dflash_deploy.plan import Choice, engine_command

    choice = Choice(
        profile=profile,
        model=model,
        engine=engine,
        runtime=runtime,
        goal=goal,
        max_model_len=max_model_len,
        concurrency=concurrency,
        drafter=not no_drafter,
        node_rank=node_rank,
        master_addr=master_addr,
    )
    made = _planned(choice, directory)
    command = engine_command(made)
    published = [
        speed for speed in load_catalog().speeds if (speed.profile, speed.pair) == (made.profile.name, made.pair.name)
    ]
    data = {
        "profile": made.profile.name,
        "engine": made.engine.name,
        "pair": made.pair.name,
        "runtime": made.runtime,
        "command": command,
        "settings": made.setting_rows(),
        "memory": made.memory and made.memory.row(),
        "speed": {
            "expected": [speed.row() for speed in made.speed],
            "published": [speed.model_dump() for speed in published],
        },
    }
    shown: tuple[RenderableType, ...] = (
        f"profile  {made.profile.name}: {made.profile.title}",
        f"         {made.profile.evidence.state}: {made.profile.evidence.by}",
        f"model    {made.pair.title}",
        f"engine   {made.engine_title}, {made.runtime}",
        "",
        *_settings(made),
        "",
        f"command  {shlex.join(command)}",
        "",
        *_memory(made),
        *_speed(made),
        *_published(published),
        *refusal_of(made),
    )
    return Report(data, shown, made.findings)


def _planned(choice: Choice, directory: Path) -> Plan:
    """The deployment's plan where there is one, with wishes on top; another profile is another deployment."""
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.plan import Choice

    if choice.profile is not None or not Deployment(directory).exists():
        return make_plan(choice)
    deployment = Deployment.existing(directory)
    if choice == Choice():
        return plan_of(deployment)
    asked = {
        "DFLASH_PAIR": choice.model,
        "DFLASH_ENGINE": choice.engine or choice.model,
        "DFLASH_RUNTIME": choice.runtime,
    }
    kept = ("DFLASH_PROFILE", *(name for name, wish in asked.items() if wish is None))
    identity = {name: deployment.values.get(name, "") for name in kept}
    return make_plan(replace(choice, edited=identity), deployment)


def _settings(made: Plan) -> Iterator[RenderableType]:
    """One setting a line, as it stands in `.env`, its reason below it: names and values can be copied whole."""
    from rich.text import Text

    for setting in made.decisions:
        if setting.value:
            yield Text.assemble((f"{setting.name}={setting.value}", "bold"), (f"  ({setting.origin})", "cyan"))
            source = f" [{setting.source}]" if setting.source else ""
            yield Text(f"    {setting.reason}{source}", style="dim")


def _memory(made: Plan) -> Iterator[str]:
    fit = made.memory
    if fit is None:
        return
    if not made.engine.cpu:
        parts = (
            f"{_gib(fit.target)} target, {_gib(fit.drafter)} drafter, {_gib(fit.reserve)} for activations and graphs"
        )
        yield f"memory   of {_gib(fit.budget)} GiB of one GPU: {parts}, {_gib(fit.cache)} GiB for the cache (estimated)"
    states = f", a sequence {_gib(fit.state_per_sequence)} GiB of recurrent states" if fit.state_per_sequence else ""
    yield f"         a token takes {fit.kv_per_token / 1024:.0f} KiB of cache{states}"
    yield (
        f"         room for {fit.sequences:.1f} sequences of full length, {fit.tokens:,} tokens in all; "
        f"up to {made.values.get('MAX_NUM_SEQS') or 'some'} at the same time"
    )


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}" if size >= GIB / 10 else f"{size / GIB:.3f}"


def _speed(made: Plan) -> Iterator[str]:
    """What the model of plan/speed.py expects. On a processor it has nothing to say."""
    for speed in made.speed:
        streams = "1 stream" if speed.concurrency == 1 else f"{speed.concurrency} streams"
        line = f"speed    {streams}: {speed.plain[0]:.0f} to {speed.plain[1]:.0f} tokens/s without the drafter"
        if speed.dflash is not None and speed.acceptance is not None:
            shortest, longest = speed.acceptance
            line += f", {speed.dflash[0]:.0f} to {speed.dflash[1]:.0f} with it"
            line += f" (at {shortest:.1f} to {longest:.1f} accepted tokens a step)"
        yield line
    if made.speed:
        yield "         expected from bytes, bandwidth and acceptance, not measured"


def _published(speeds: list[PublishedSpeed]) -> Iterator[str]:
    for speed in speeds:
        plain = f"{speed.plain:g} -> " if speed.plain is not None else ""
        length = f", acceptance length {speed.acceptance_length:g}" if speed.acceptance_length is not None else ""
        streams = "1 stream" if speed.concurrency == 1 else f"{speed.concurrency} streams"
        yield (
            f"seen     {speed.workload}, {streams}, {speed.draft_tokens} draft tokens: {plain}{speed.dflash:g} tokens/s"
            f"{length} ({speed.source})"
        )
