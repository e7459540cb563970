"""`plan`: what would be done, and why."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
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
    from dflash_deploy.operations.plan import Asked, EngineOption, Planned, Ranked
    from dflash_deploy.plan.result import Choice, Plan
    from dflash_deploy.plan.speed import Speed


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
    asked = None
    if ask_engine:
        from dflash_deploy.operations.ask_engine import ask_engine as run_question

        asked = run_question(directory, choice, reporter=terminal())
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
    yield from why_lines(found.ranked, made)
    yield ""
    yield from _settings(made)
    yield ""
    yield f"command  {shlex.join(found.command)}"
    yield ""
    yield from _memory(made)
    yield from _speed(found)
    yield from _published(found.speed.published)
    if made.profile.gpus and not found.speed.published:
        yield "seen     no speed of these models on this hardware is published"
    if asked:
        yield from _asked(asked)
    yield from refusal_of(made)


# What the first model is ahead in, by the name of the criterion.
AHEAD = {
    "safe": "it is not safe as a default",
    "useful": "the first has a useful context for as many sequences",
    "newest": "the first is newer",
    "shared": "the first serves more requests at the same time",
    "measured": "the first was measured on this hardware",
    "exact": "the answers of the first are those of BF16",
    "engine": "the first runs on the engine that suits this hardware best",
    "drafts": "drafts pay more with the first",
    "speed": "the first is faster",
    "context": "the first has a longer context",
    "tools": "the first calls tools",
    "images": "the first reads images",
}


def why_lines(ranked: Iterable[Ranked], made: Plan) -> Iterator[str]:
    """The first models for this machine with the figures that decided, and the option for each other one."""
    for number, one in enumerate(ranked, 1):
        chosen = one.pair == made.pair.name
        seen = "published" if one.published else "expected"
        cache = "" if one.kv_cache_dtype in {"auto", ""} else f", {one.kv_cache_dtype} cache"
        figures = f"{one.max_model_len:,} x {one.max_num_seqs}{cache}, {one.tokens_per_s:.0f} tokens/s {seen} at "
        figures += f"concurrency {one.concurrency}"
        behind = f"; {one.unsafe or AHEAD[one.decided_by]}" if one.decided_by else ""
        yield f"{'why' if number == 1 else '':9}{number}. {'' if chosen else '--model '}{one.pair}: {figures}{behind}"
    for setting in made.decisions:
        if setting.name == Settings.data_parallel_size.name and setting.origin.startswith("--goal"):
            yield f"{'':9}{setting.name}={setting.value}: {setting.reason}"


def _options(made: Plan, listed: tuple[EngineOption, ...]) -> Iterator[Shown]:
    """Names of options, and what sets each of them."""
    released = f", released {made.engine.released}" if made.engine.released else ""
    table = Grid("option", "set it in", wraps=("set it in",))
    for option in listed:
        table.add_row(option.name, option.setting or Settings.extra_args.name)
    yield f"{len(listed)} options of {made.engine.title}{released}"
    if listed:
        yield from ("", table)


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


def _speed(found: Planned) -> Iterator[Shown]:
    """What the model of plan/speed.py expects, by text and concurrency; nothing for a processor."""
    made, speeds = found.plan, found.plan.speed
    if not speeds:
        return
    yield "speed    tokens/s of all requests together, expected from bytes, bandwidth and acceptance, not measured:"
    table = Grid("text", "tokens/step", *(f"concurrency {speed.concurrency}" for speed in speeds))
    plain = [_expected(speed.plain_expected, speed.plain_tokens_per_s) for speed in speeds]
    table.add_row("without drafts", "1", *plain)
    both = bool(speeds[0].of("dflash"))
    for index, text in enumerate(speeds[0].texts):
        if both and text.drafts == "mtp" and text.text not in ("chat", "code"):
            continue
        cells = [_expected(speed.texts[index].tokens_per_s, speed.texts[index].range) for speed in speeds]
        scaled = "" if text.published else "*"
        table.add_row(f"{DRAFTS[text.drafts]}, {text.text}", f"{text.acceptance_length:.1f}{scaled}", *cells)
    for (workload, kind), rates in found.measured.items():
        cells = [f"{rates[speed.concurrency]:.0f}" if speed.concurrency in rates else "" for speed in speeds]
        if any(cells):
            table.add_row(f"measured {kind}, {workload}", "", *cells)
    yield table
    if any(not one.published for one in speeds[0].texts):
        yield "         *: no length is published for this model and text; it is scaled from other models"
    if speeds[0].note:
        yield f"         the range is wider: {speeds[0].note}"
    waiting = (made.settings.max_num_seqs or 0) * made.settings.data_parallel_size
    if waiting and speeds[-1].concurrency > waiting:
        yield f"         requests beyond {waiting} wait for others ({Settings.max_num_seqs})"
    if faster := _faster(speeds):
        yield f"         {faster}"


DRAFTS = {"dflash": "DFlash", "mtp": "MTP"}


def _expected(middle: float, around: Sequence[float]) -> str:
    return f"{middle:.0f} ({around[0]:.0f}-{around[1]:.0f})"


def _faster(speeds: Sequence[Speed]) -> str:
    """Which of drafter and MTP head is expected to be faster, if both can be compared."""
    if not (speeds[0].of("dflash") and speeds[0].of("mtp")):
        return ""
    gains = [(speed.concurrency, speed.expected("dflash") / speed.expected("mtp")) for speed in speeds]
    said = ", ".join(f"{gain:.1f} at concurrency {at}" for at, gain in gains)
    return f"DFlash / MTP, for a mix of chat and code: {said}"


def _published(speeds: Iterable[PublishedSpeed]) -> Iterator[str]:
    for speed in speeds:
        plain = f"{speed.plain:g} -> " if speed.plain is not None else ""
        length = f", acceptance length {speed.acceptance_length:g}" if speed.acceptance_length is not None else ""
        waited = f", {speed.sequences} at a time" if speed.queued else ""
        yield (
            f"seen     {speed.workload}, concurrency {speed.concurrency}{waited}, {speed.draft_tokens} draft tokens: "
            f"{plain}{speed.dflash:g} tokens/s{length} ({speed.source}; {speed.measured_with})"
        )
