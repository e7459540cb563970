"""`plan`: what would be done, and why."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.command import command, note_if_new, terminal
from dflash_deploy.cli.options import GIB, some, with_choice
from dflash_deploy.cli.planned import evidence_line, model_lines, refusal_of
from dflash_deploy.cli.shown import Grid, Report, Shown, Styled
from dflash_deploy.serve.settings import Settings

if TYPE_CHECKING:
    from dflash_deploy.catalog.speeds import PublishedSpeed
    from dflash_deploy.operations.plan import Asked, EngineOption, Planned
    from dflash_deploy.plan.result import Choice, Plan


AskEngine = Annotated[
    bool, typer.Option("--ask-engine", help="Also let the engine make its configuration, without weights.")
]

Options = Annotated[
    str | None,
    typer.Option(
        "--options",
        metavar="WORD",
        help=f"List the release's options for {Settings.extra_args} whose name contains WORD.",
    ),
]


@command(examples=("plan --ask-engine", "plan --profile dgx-spark"))
@with_choice
def plan(
    choice: Choice,
    ask_engine: AskEngine = False,
    options: Options = None,
    *,
    directory: Path,
) -> Report:
    """Show each setting and why, the engine command, memory and speed. Writes nothing.

    `--ask-engine`: the installed engine, or a container of the image, decides from config.json and its own code. It
    takes seconds and loads no weights; config.json and tokenizer are fetched if they are missing. Ends with 3 if it
    refuses.
    """
    from dflash_deploy.operations.plan import engine_options
    from dflash_deploy.operations.plan import plan as run_plan

    found = run_plan(directory, choice)
    note_if_new(directory)
    asked = _ask(directory, choice) if ask_engine else None
    made = asked.plan if asked else found.plan
    found = replace(found, asked=asked)
    if options is not None:
        listed = engine_options(made, options)
        return Report(replace(found, options=listed), tuple(_options(made, listed)), made.findings)
    return Report(found, tuple(_shown(found, made, asked)), made.findings, asked.failure if asked else None)


def _shown(found: Planned, made: Plan, asked: Asked | None) -> Iterator[Shown]:
    yield f"profile  {made.profile.name}: {made.profile.title}"
    yield f"         {evidence_line(made)}"
    yield from model_lines(made)
    yield f"engine   {made.engine_title}, {made.runtime}"
    yield ""
    yield from _settings(made)
    yield ""
    yield f"command  {shlex.join(found.command)}"
    yield ""
    yield from _memory(made)
    yield from _speed(made)
    yield from _published(found.speed.published)
    if asked:
        yield from _asked(asked)
    yield from refusal_of(made)


def _options(made: Plan, listed: tuple[EngineOption, ...]) -> Iterator[Shown]:
    """Names of options, and what sets each of them."""
    released = f", released {made.engine.released}" if made.engine.released else ""
    table = Grid("option", "set it in", wraps=("set it in",))
    for option in listed:
        table.add_row(option.name, option.setting or Settings.extra_args.name)
    yield f"{len(listed)} options of {made.engine.title}{released}"
    if listed:
        yield from ("", table)


def _ask(directory: Path, choice: Choice) -> Asked:
    from dflash_deploy.operations.ask_engine import ask_engine

    return ask_engine(directory, choice, reporter=terminal())


def _asked(asked: Asked) -> Iterator[Shown]:
    """What the engine says, and what it chose."""
    made = asked.plan
    yield ""
    yield f"asked    {made.engine_title} {asked.verdict}{': ' if asked.said else ' this'}{asked.said}"
    for name, value in asked.decided.items():
        yield f"         {name.replace('_', ' ')}: {value}"


def _settings(made: Plan) -> Iterator[Shown]:
    """One setting a line, as `.env` has it, its reason below it: names and values can be copied whole.

    Empty ones are left out, but for a drafter that the plan proposes and `.env` has emptied: that means none.
    """
    for setting in made.decisions:
        if setting.value or (setting.name == Settings.dflash_drafter.name and setting.origin == ".env"):
            yield Styled((f"{setting.name}={setting.value}", "bold"), (f"  ({setting.origin})", "cyan"))
            source = f" [{setting.source}]" if setting.source else ""
            yield Styled((f"    {setting.reason}{source}", "dim"))


def _memory(made: Plan) -> Iterator[str]:
    fit = made.memory
    if fit is None:
        return
    if not made.engine.cpu:
        parts = f"{_gib(fit.target_bytes)} target, {_gib(fit.drafter_bytes)} drafter"
        rest = f"{_gib(fit.reserve_bytes)} for activations and graphs, {_gib(fit.cache_bytes)} GiB for the cache"
        yield f"memory   of {_gib(fit.budget_bytes)} GiB of one GPU: {parts}, {rest} (estimated)"
    if fit.system_bytes is not None:
        yield f"         {_gib(fit.system_bytes)} GiB of the machine's memory remain for the system"
    state = fit.state_bytes_per_sequence
    states = f", a sequence {_gib(state)} GiB of recurrent states" if state else ""
    yield f"         a token takes {fit.kv_bytes_per_token / 1024:.0f} KiB of cache{states}"
    yield (
        f"         room for {some(fit.sequences)} sequences of full length, {fit.cache_tokens:,} tokens in all; "
        f"up to {made.settings.max_num_seqs or 'some'} at the same time"
    )


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}" if size >= GIB / 10 else f"{size / GIB:.3f}"


def _speed(made: Plan) -> Iterator[str]:
    """What the model of plan/speed.py expects; nothing for a processor."""
    for speed in made.speed:
        at = f"concurrency {speed.concurrency}"
        line = f"speed    {at}: {speed.plain[0]:.0f} to {speed.plain[1]:.0f} tokens/s without the drafter"
        if speed.dflash is not None and speed.acceptance is not None:
            shortest, longest = speed.acceptance
            line += f", {speed.dflash[0]:.0f} to {speed.dflash[1]:.0f} with it"
            line += f" (at {shortest:.1f} to {longest:.1f} accepted tokens a step)"
        yield line
    if made.speed:
        yield "         expected from bytes, bandwidth and acceptance, not measured"


def _published(speeds: Iterable[PublishedSpeed]) -> Iterator[str]:
    for speed in speeds:
        plain = f"{speed.plain:g} -> " if speed.plain is not None else ""
        length = f", acceptance length {speed.acceptance_length:g}" if speed.acceptance_length is not None else ""
        waited = f", {speed.sequences} at a time" if speed.queued else ""
        yield (
            f"seen     {speed.workload}, concurrency {speed.concurrency}{waited}, {speed.draft_tokens} draft tokens: "
            f"{plain}{speed.dflash:g} tokens/s{length} ({speed.source}; {speed.measured_with})"
        )
