"""`tune`: measure a few settings of the drafter, propose the best, and write it into `.env` on consent."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.report import HERE, SCHEMA, Directory, Json, Report, table, verb
from dflash_deploy.errors import BadInput

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dflash_deploy.cli.tune_sequences import Sequences
    from dflash_deploy.cli.tuning import Outcome, Pace, Tuning
    from dflash_deploy.deployment import Deployment

EVIDENCE = "tune.json"
"""In `.dflash/`: the figures that the last run decided on."""


@verb
def tune(
    directory: Directory = HERE,
    workload: Annotated[
        str, typer.Option("--workload", "-w", help="As for `bench`; several are measured as one mixture.")
    ] = "",
    prompts: Annotated[
        Path | None, typer.Option(help="A JSONL file with `prompt` or `messages` in each line.", dir_okay=False)
    ] = None,
    concurrency: Annotated[
        str, typer.Option(help="Streams that count, such as 1,2,4,8; else the powers of two up to MAX_NUM_SEQS, 16.")
    ] = "",
    draft_tokens: Annotated[
        str, typer.Option(help="Draft tokens that are measured, such as 1,3,7; else 1 and the most.")
    ] = "",
    schedule: Annotated[
        bool, typer.Option(help="Propose fewer draft tokens for more streams, where the engine can.")
    ] = True,
    sequences: Annotated[
        bool, typer.Option("--sequences", help="Also MAX_NUM_SEQS: fewer, or twice as many where memory has room.")
    ] = False,
    requests: Annotated[
        int | None, typer.Option(min=1, help="Requests of one repeat; else each prompt once, and two for each stream.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Repeats of each measurement; the median counts.")] = 3,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, where a prompt names no length.")] = 256,
    temperature: Annotated[float, typer.Option(min=0, max=2, help="Of sampling; 0 is greedy.")] = 0.0,
    thinking: Annotated[bool, typer.Option("--thinking", help="Let the model think, where its template asks.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be measured; start nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write a proposal that won into .env.")] = False,
    patience: Annotated[float, typer.Option(min=1, help="As for `up`, for each restart.")] = 900,
    as_json: Json = False,
) -> Report:
    """Find the number of draft tokens that suits this machine and these prompts; the engine restarts meanwhile."""
    from dflash_deploy.bench.sweep import Sweep
    from dflash_deploy.bench.workload import Limits, choose
    from dflash_deploy.cli.bench import numbers_of
    from dflash_deploy.cli.measured import deployed
    from dflash_deploy.cli.tunable import check_tunable, knows_schedules, pooled, tuning_of, usual_streams
    from dflash_deploy.deployment import hold

    streams = numbers_of(concurrency) if concurrency else None
    counts = _counts(draft_tokens)
    subject = deployed(directory, patience=patience)
    check_tunable(subject.plan)
    names = [name.strip() for name in workload.split(",") if name.strip()]
    sweep = Sweep(
        workloads=(pooled(choose(names, prompts, subject.pair)),),
        concurrency=streams or usual_streams(subject.plan),
        limits=Limits(max_tokens, temperature, thinking),
        repeats=repeats,
        requests=requests,
    )
    tuning = tuning_of(
        subject, sweep, counts, scheduling=schedule and knows_schedules(subject.plan), sequences=sequences
    )
    if dry_run:
        return _planned(tuning)
    outcome = tuning.run()
    changes = changes_of(subject.deployment, outcome.settings)
    written = bool(changes) and (yes or (not as_json and _agreed(changes, outcome)))
    data = _document(tuning, outcome) | {"changes": changes, "written": written}
    _keep(subject.deployment, data)
    if written:
        with hold(subject.deployment, "tune"):
            subject.deployment.with_values(changes, why=evidence_of(tuning.sweep.workloads[0].name, outcome))
    return Report(data, tuple(shown_of(subject.deployment, outcome, changes, written=written)))


def _counts(written: str) -> tuple[int, ...]:
    """The numbers of draft tokens that were asked for."""
    try:
        return tuple(int(part) for part in written.split(",")) if written else ()
    except ValueError:
        raise BadInput(
            f"--draft-tokens {written} names no numbers of draft tokens", hint="like this: --draft-tokens 1,3,7"
        ) from None


def _planned(tuning: Tuning) -> Report:
    """What would be measured, and about how long it would take."""
    workload, deployment = tuning.sweep.workloads[0], tuning.subject.deployment
    seconds, pace = tuning.estimate(_last_pace(deployment))
    streams = ",".join(map(str, tuning.sweep.concurrency))
    steps = [title for title, _ in tuning.steps]
    restarts = len(steps) + (3 if tuning.sequences else 1)
    data = {
        "workload": {"name": workload.name, "source": workload.source, "prompts": len(workload.questions)},
        "concurrency": tuning.sweep.concurrency,
        "repeats": tuning.sweep.repeats,
        "steps": [{"title": title, "settings": changes} for title, changes in tuning.steps],
        "schedules": tuning.scheduling,
        "estimate_s": seconds,
    }
    shown = (
        f"prompts   {workload.source}",
        f"streams   {streams}, {tuning.sweep.repeats} times each",
        *(f"measure   {title}{'' if number else '  (runs now)'}" for number, title in enumerate(steps)),
        "measure   the best of what these predict, where it is none of them",
        *(["measure   another MAX_NUM_SEQS, where the figures speak for one"] if tuning.sequences else []),
        f"restarts  {len(steps)} to {restarts}; requests of others are not answered meanwhile",
        f"takes     at most about {max(seconds / 60, 1):.0f} min, at {pace.start_s:.0f} s for a start and "
        f"{pace.tokens_per_s:.0f} tokens/s of a stream",
    )
    return Report(data, shown)


def _last_pace(deployment: Deployment) -> Pace | None:
    """How fast the last run went; `None` where there was none, or its file is not as it was left."""
    from dflash_deploy.cli.tuning import Pace

    try:
        data = json.loads((deployment.state / EVIDENCE).read_text(encoding="utf-8"))["data"]
        plain = [point["tokens_per_s"] / point["streams"] for point in data["points"] if not point["draft_tokens"]]
        return Pace(statistics.fmean(data["measured"]["seconds_of_starts"]), max(plain))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def changes_of(deployment: Deployment, settings: Mapping[str, str]) -> dict[str, str]:
    """Those of the settings that `.env` has otherwise."""
    return {name: value for name, value in settings.items() if deployment.values.get(name, "") != value}


def _agreed(changes: Mapping[str, str], outcome: Outcome) -> bool:
    """Whether a person at a terminal wants it written; nobody is asked elsewhere."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    typer.echo("\n".join(line for line in _said(outcome) if line.startswith("proposed")), err=True)
    lines = " ".join(f"{name}={value}" for name, value in changes.items())
    return typer.confirm(f"Write {lines} into .env?", err=True)


def _document(tuning: Tuning, outcome: Outcome) -> dict[str, object]:
    from dflash_deploy import __version__
    from dflash_deploy.bench.workload import described

    verdict = outcome.verdict
    return {
        "measured": tuning.subject.told
        | {
            "at": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            "version": __version__,
            "repeats": tuning.sweep.repeats,
            "temperature": tuning.sweep.limits.temperature,
            "thinking": tuning.sweep.limits.thinking,
            "seconds_of_starts": outcome.starts,
        },
        "workloads": described(tuning.sweep.workloads),
        "points": [point.document() for point in outcome.model.points],
        "lengths": outcome.model.lengths,
        "steps": [{"streams": streams} | asdict(line) for streams, line in outcome.model.lines.items()],
        "options": [option.document() for option in outcome.options],
        "best": outcome.best.document(),
        "tried": [one.document() for one in outcome.tried],
        "verdict": None if verdict is None else asdict(verdict) | {"wins": verdict.wins},
        "proposal": None if outcome.proposal is None else outcome.proposal.document(),
        "sequences": None if outcome.sequences is None else _of_sequences(outcome.sequences),
    }


def _of_sequences(found: Sequences) -> dict[str, object]:
    verdict = asdict(found.verdict) | {"wins": found.verdict.wins}
    tried = [found.before.document(), found.after.document()]
    return {"count": found.count, "streams": found.streams, "tried": tried, "verdict": verdict}


def evidence_of(workload: str, outcome: Outcome) -> list[str]:
    """The figures that speak for a proposal, as they go into `.env` beside it: a line for each setting."""
    streams = ", ".join(map(str, outcome.model.streams))
    titles = [one.title for one in outcome.tried]
    width = max(map(len, titles))
    return [
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, prompts: {workload}",
        f"{'tokens/s at streams':{width}}  {streams}",
        *(f"{one.title:{width}}  {', '.join(f'{rate:.1f}' for rate in one.rates)}" for one in outcome.tried),
        *_evidence_of_sequences(outcome.sequences),
    ]


def _evidence_of_sequences(found: Sequences | None) -> Iterator[str]:
    if found is not None and found.settings:
        rates = ", ".join(f"{one.title} {one.rates[0]:.1f}" for one in (found.before, found.after))
        yield f"tokens/s at {found.streams} streams: {rates}"


def _keep(deployment: Deployment, data: Mapping[str, object]) -> None:
    from dflash_deploy.deployment.files import PRIVATE, write_atomically

    text = json.dumps({"schema": SCHEMA, "command": "tune", "data": data}, indent=2, ensure_ascii=False)
    write_atomically(deployment.make_state() / EVIDENCE, deployment.redact(text) + "\n", mode=PRIVATE)


def shown_of(
    deployment: Deployment, outcome: Outcome, changes: Mapping[str, str], *, written: bool
) -> Iterator[RenderableType]:
    """What people get to read: the figures, the decision, what is left to do."""
    yield _table(outcome)
    yield ""
    yield from _said(outcome)
    if written:
        yield f"written   {' '.join(f'{name}={value}' for name, value in changes.items())}"
        yield f"before    {deployment.last_env_file}"
        yield "next      dflash-deploy up     apply it"
    elif changes:
        yield "next      the same command with --yes, or write these lines into .env:"
        yield from (f"          {name}={value}" for name, value in changes.items())
    yield f"evidence  {deployment.state / EVIDENCE}"


def _table(outcome: Outcome) -> RenderableType:
    """Tokens/s of all that was measured, and of the proposal as it was predicted."""
    drawn = table("streams", *(one.title for one in outcome.tried), f"predicted: {outcome.best.title}")
    for number, streams in enumerate(outcome.model.streams):
        rates = [one.rates[number] for one in outcome.tried]
        drawn.add_row(str(streams), *(f"{rate:.1f}" for rate in rates), f"{outcome.best.rates[number]:.1f}")
    return drawn


def _said(outcome: Outcome) -> Iterator[str]:
    """The decision and what speaks against it."""
    from dflash_deploy.bench.tune_choose import NOISE, passed_over

    lengths = ", ".join(f"{length:.2f}" for length in outcome.model.lengths[1:])
    yield f"lengths   tokens a step with 1, 2, ... draft tokens: {lengths}"
    if outcome.verdict is None:
        yield "keep      what .env has: nothing is predicted to be faster"
    elif outcome.proposal is None:
        yield (
            f"keep      what .env has: {outcome.best.title} was {outcome.verdict.gain:.2f} times as fast, "
            f"which is no more than two runs differ ({outcome.verdict.noise:.0%})"
        )
    else:
        yield (
            f"proposed  {outcome.best.title}: {outcome.verdict.gain:.2f} times as fast as what .env has, "
            f"{outcome.verdict.least:.2f} at the least"
        )
    if (more := outcome.sequences) is not None:
        gain = f"{more.title}: {more.verdict.gain:.2f} times as fast for {more.streams} streams"
        yield f"proposed  {gain}" if more.settings else f"keep      MAX_NUM_SEQS; {gain}"
    slower = [
        f"{streams} ({ours / plain:.2f})"
        for streams, ours, plain in zip(
            outcome.model.streams, outcome.confirmed.rates, outcome.plain.rates, strict=True
        )
        if ours < (1 - NOISE) * plain
    ]
    if slower:
        yield f"but       measured slower than no drafter at these streams: {', '.join(slower)}"
    other = passed_over(outcome.options, outcome.best)
    if other is not None:
        yield (
            f"not taken {other.title}: {other.score / outcome.best.score:.2f} times as fast on the whole, and slower "
            "at some streams; --concurrency says which ones count"
        )
