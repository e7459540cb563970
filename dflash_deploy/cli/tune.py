"""`tune`: measure a few settings of the drafter, propose the best, and write it into `.env` on consent."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.command import command, terminal
from dflash_deploy.cli.options import (
    HERE,
    Directory,
    Json,
    MaxTokens,
    Mixture,
    Prompts,
    RepeatsForMedian,
    Requests,
    Temperature,
    Thinking,
    concurrency_of,
    draft_tokens_of,
    head_tokens_of,
)
from dflash_deploy.cli.shown import Grid, Report, Shown
from dflash_deploy.serve.settings import Settings
from dflash_deploy.startup import PATIENCE

if TYPE_CHECKING:
    from dflash_deploy.operations.tune import Tuned
    from dflash_deploy.tuning.experiment import Experiment
    from dflash_deploy.tuning.run import Outcome


_ASSUMED = " (assumed: nothing was measured with these settings; `dflash-deploy bench --baseline` does)"


At = Annotated[
    str, typer.Option(help=f"To tune for, such as 1,2,4,8; else the powers of two up to {Settings.max_num_seqs}, 16.")
]
DraftTokens = Annotated[str, typer.Option(help="Draft tokens to measure, such as 1,3,7; else 1 and the most.")]
Heads = Annotated[
    str, typer.Option(help="Draft tokens to measure with the target's MTP head, or `off`; else 2 if it has one.")
]
Schedule = Annotated[bool, typer.Option(help="Propose fewer draft tokens at higher concurrency, if the engine can.")]
Context = Annotated[int, typer.Option(min=0, help="Tokens of a conversation before each prompt.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be measured; start nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Write a proposal that won into .env.")]
Restarts = Annotated[float, typer.Option(min=1, help="As for `up`, for each restart.")]


@command(changes=True, starts_over=True, examples=("tune --dry-run", "tune --workload code --context 16000 --yes"))
def tune(
    directory: Directory = HERE,
    workload: Mixture = "",
    prompts: Prompts = None,
    concurrency: At = "",
    draft_tokens: DraftTokens = "",
    mtp: Heads = "",
    schedule: Schedule = True,
    context: Context = 0,
    requests: Requests = None,
    repeats: RepeatsForMedian = 3,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.0,
    thinking: Thinking = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    patience: Restarts = PATIENCE,
    as_json: Json = False,
) -> Report:
    """Find the number of draft tokens that is fastest here. The engine restarts for each one that is measured."""
    from dflash_deploy.bench.workload import Limits
    from dflash_deploy.operations.tune import plan_tuning
    from dflash_deploy.operations.tune import tune as run_tune

    experiment = plan_tuning(
        directory,
        workloads=[name.strip() for name in workload.split(",") if name.strip()],
        prompts=prompts,
        concurrency=concurrency_of(concurrency) if concurrency else (),
        draft_tokens=draft_tokens_of(draft_tokens),
        heads=head_tokens_of(mtp),
        schedule=schedule,
        limits=Limits(max_tokens, temperature, thinking),
        requests=requests,
        repeats=repeats,
        context=context,
    )
    if dry_run:
        return _planned(experiment)

    def agree(proposed: Tuned) -> bool:
        return yes or (not as_json and _agreed(proposed))

    done = run_tune(experiment, patience=patience, agree=agree, reporter=terminal())
    return Report(done.document(), tuple(shown_of(done)))


def _planned(experiment: Experiment) -> Report:
    """What would be measured, and about how long it would take."""
    from dflash_deploy.bench.workload import described
    from dflash_deploy.operations.tune import estimated

    workload, sweep = experiment.sweep.workloads[0], experiment.sweep
    seconds, pace = estimated(experiment)
    steps = [title for title, _ in experiment.steps]
    after = f", each after {sweep.context:,} tokens of a conversation" if sweep.context else ""
    restarts = len(steps) + 1
    data = {
        "workload": described(sweep.workloads)[0],
        "concurrency": sweep.concurrency,
        "repeats": sweep.repeats,
        "context": sweep.context,
        "steps": [{"title": title, "settings": changes} for title, changes in experiment.steps],
        "schedules": experiment.scheduling,
        "estimate_s": seconds,
    }
    shown = (
        f"prompts   {workload.source}{after}",
        f"at        concurrency {','.join(map(str, sweep.concurrency))}, {sweep.repeats} times each",
        *(f"measure   {title}{'' if number else '  (runs now)'}" for number, title in enumerate(steps)),
        "measure   the best of what these predict, unless one of these has them",
        f"restarts  {len(steps)} to {restarts}; requests of other clients are not answered meanwhile",
        f"takes     at most about {max(seconds / 60, 1):.0f} min, at {pace.start_s:.0f} s for a start and "
        f"{pace.tokens_per_s:.0f} tokens/s at concurrency 1{_ASSUMED if pace.assumed else ''}",
    )
    return Report(data, shown)


def _agreed(proposed: Tuned) -> bool:
    """Ask at a terminal whether to write it; elsewhere it is refused."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    typer.echo("\n".join(line for line in _said(proposed.outcome) if line.startswith("proposed")), err=True)
    lines = " ".join(f"{name}={value}" for name, value in proposed.changes.items())
    return typer.confirm(f"Write {lines} into .env?", err=True)


def shown_of(done: Tuned) -> Iterator[Shown]:
    """The result for people: the figures, the decision, what is left to do."""
    yield _table(done.outcome)
    yield ""
    yield from _said(done.outcome)
    if done.written:
        yield f"written   {' '.join(f'{name}={value}' for name, value in done.changes.items())}"
        yield f"before    {done.experiment.deployment.last_env_file}"
        yield "next      dflash-deploy up     apply it"
    elif done.changes:
        yield "next      the same command with --yes, or write these lines into .env:"
        yield from (f"          {name}={value}" for name, value in done.changes.items())
    yield f"evidence  {done.evidence_file}"


def _table(outcome: Outcome) -> Shown:
    """Tokens/s of all that was measured, and of the proposal as predicted."""
    drawn = Grid("concurrency", *(one.title for one in outcome.tried), f"predicted: {outcome.best.title}")
    for number, streams in enumerate(outcome.model.streams):
        rates = [one.rates[number] for one in outcome.tried]
        drawn.add_row(str(streams), *(f"{rate:.1f}" for rate in rates), f"{outcome.best.rates[number]:.1f}")
    return drawn


def _said(outcome: Outcome) -> Iterator[str]:
    """The decision, and what contradicts it."""
    from dflash_deploy.tuning.choose import NOISE, passed_over

    lengths = ", ".join(f"{length:.2f}" for length in outcome.model.lengths[1:])
    yield f"lengths   tokens a step with 1, 2, ... draft tokens: {lengths}"
    if outcome.head is not None:
        yield f"MTP       {outcome.head.sentence}"
    if outcome.verdict is None:
        yield "keep      the settings of .env: nothing is predicted to be faster"
    elif outcome.proposal is None:
        yield (
            f"keep      the settings of .env: {outcome.best.title} was {outcome.verdict.gain:.2f} times as fast, "
            f"not more than two runs differ ({outcome.verdict.noise:.0%})"
        )
    else:
        yield (
            f"proposed  {outcome.best.title}: {outcome.verdict.gain:.2f} times as fast as the settings of .env, "
            f"at least {outcome.verdict.least:.2f}"
        )
    slower = [
        f"{streams} ({ours / plain:.2f})"
        for streams, ours, plain in zip(
            outcome.model.streams, outcome.confirmed.rates, outcome.plain.rates, strict=True
        )
        if ours < (1 - NOISE) * plain
    ]
    if slower:
        yield f"but       measured slower than without the drafter at concurrency {', '.join(slower)}"
    other = passed_over(outcome.options, outcome.best)
    if other is not None:
        yield (
            f"not taken {other.title}: {other.score / outcome.best.score:.2f} times as fast overall, but slower at "
            "some concurrency; --concurrency sets the ones to tune for"
        )
