"""`tune`: measure a few settings of the drafter, propose the best, and write it into `.env` on consent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.command import command, terminal
from dflash_deploy.cli.options import (
    Context,
    MaxTokens,
    Mixture,
    Prompts,
    RepeatsForMedian,
    Requests,
    Thinking,
    concurrency_of,
    draft_tokens_of,
    is_asked_on_terminal,
)
from dflash_deploy.cli.shown import Grid, Report, Shown
from dflash_deploy.serve.settings import Settings

if TYPE_CHECKING:
    from dflash_deploy.operations.tune import Tuned, Tuning

At = Annotated[
    str, typer.Option(help=f"To tune for, such as 1,2,4,8; else the powers of two up to {Settings.max_num_seqs}, 16.")
]
DraftTokens = Annotated[str, typer.Option(help="Draft tokens to measure, such as 1,3,7; else 1 and the most.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be measured; start nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Never prompt, and write a proposal that won into .env.")]


@command(changes=True, starts_over=True, examples=("tune --dry-run", "tune --workload code --context 16000 --yes"))
def tune(
    workload: Mixture = "",
    prompts: Prompts = None,
    concurrency: At = "",
    draft_tokens: DraftTokens = "",
    context: Context = 0,
    requests: Requests = None,
    repeats: RepeatsForMedian = 3,
    max_tokens: MaxTokens = 256,
    thinking: Thinking = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    *,
    directory: Path,
    as_json: bool,
) -> Report:
    """Find the number of draft tokens that is fastest here. The engine restarts for each one that is measured."""
    from dflash_deploy.bench.workload import Limits
    from dflash_deploy.operations.tune import plan_tuning
    from dflash_deploy.operations.tune import tune as run_tune

    tuning = plan_tuning(
        directory,
        workloads=[name.strip() for name in workload.split(",") if name.strip()],
        prompts=prompts,
        concurrency=concurrency_of(concurrency) if concurrency else (),
        draft_tokens=draft_tokens_of(draft_tokens),
        limits=Limits(max_tokens, thinking=thinking),
        requests=requests,
        repeats=repeats,
        context=context,
    )
    if dry_run:
        return _planned(tuning)
    asks, reporter = not (yes or as_json) and is_asked_on_terminal(), terminal()
    if asks:
        for line in _planned(tuning).shown:
            reporter.note(str(line))
        typer.confirm("Restart the engine now?", abort=True, err=True)
    with ExitStack() as work:
        work.enter_context(reporter.working("measuring"))

        def agree(proposed: Tuned) -> bool:
            work.close()
            return yes or (asks and _agreed(proposed))

        done = run_tune(tuning, agree=agree, reporter=reporter)
    return Report(done, tuple(shown_of(done)))


def _planned(tuning: Tuning) -> Report:
    """What would be measured."""
    from dflash_deploy.operations.tune import dry_run

    sweep = tuning.sweep
    after = f", each after {sweep.context:,} tokens of a conversation" if sweep.context else ""
    shown = (
        f"prompts   {sweep.workloads[0].source}{after}",
        f"at        concurrency {','.join(map(str, sweep.concurrency))}, {sweep.repeats} times each",
        *(f"measure   {title}{'' if changes else '  (runs now)'}" for title, changes, _ in tuning.steps),
        "measure   the best of what these predict, and the present settings again",
        f"restarts  {len(tuning.steps) - 1} to {len(tuning.steps) + 1}; other clients are not answered meanwhile",
    )
    return Report(dry_run(tuning), shown)


def _agreed(proposed: Tuned) -> bool:
    """Ask whether to write it."""
    typer.echo(proposed.sentence, err=True)
    lines = " ".join(f"{name}={value}" for name, value in proposed.changes.items())
    return typer.confirm(f"Write {lines} into .env?", err=True)


def shown_of(done: Tuned) -> Iterator[Shown]:
    """The result for people: the figures, the decision, what is left to do."""
    drawn = Grid("concurrency", *(one.title for one in done.tried), f"predicted: {done.best}")
    for place, concurrency in enumerate(done.tuning.sweep.concurrency):
        rates = [one.rates[place] for one in done.tried]
        drawn.add_row(str(concurrency), *(f"{rate:.1f}" for rate in (*rates, done.option.rates[place])))
    yield drawn
    yield ""
    lengths = ", ".join(f"{length:.2f}" for length in done.lengths[1:])
    yield f"lengths   tokens a step with 1, 2, ... draft tokens: {lengths}"
    yield done.sentence
    if done.written:
        yield f"written   {' '.join(f'{name}={value}' for name, value in done.changes.items())}"
        yield f"before    {done.tuning.deployment.last_env_file}"
        yield "next      dflash-deploy up     apply it"
    elif done.changes:
        yield "next      the same command with --yes, or write these lines into .env:"
        yield from (f"          {name}={value}" for name, value in done.changes.items())
    yield f"evidence  {done.tuning.deployment.state / 'tune.json'}"
