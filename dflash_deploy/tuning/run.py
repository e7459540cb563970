"""Measure a deployment under some settings, decide, and measure the proposal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from dflash_deploy.client import START_IT, served_names
from dflash_deploy.deployment import command_lock
from dflash_deploy.serve.settings import Settings
from dflash_deploy.startup import endpoint_of
from dflash_deploy.startup.apart import set_apart
from dflash_deploy.startup.progress import show_redacted
from dflash_deploy.startup.temporary_settings import temporary_settings
from dflash_deploy.tuning.choose import (
    HeadComparison,
    Option,
    Verdict,
    between,
    choose,
    compare_head,
    compared,
    options,
)
from dflash_deploy.tuning.experiment import OFF, Experiment, mtp_head
from dflash_deploy.tuning.model import Model, Point, fitted, point_of
from dflash_deploy.tuning.rig import MeasurementReporter, Rig, Tried
from dflash_deploy.tuning.sequences import Sequences, try_sequences

ASSUMED_START_S = 120.0
ASSUMED_TOKENS_PER_S = 30.0
"""What an estimate uses on a machine without an earlier run and without an expected speed."""


@dataclass(frozen=True)
class Pace:
    """Seconds of one start, and tokens/s at concurrency 1 without speculative decoding.

    `assumed`: the machine never measured the tokens/s, and no speed is expected for it.
    """

    start_s: float
    tokens_per_s: float
    assumed: bool = False


@dataclass(frozen=True)
class Outcome:
    """All that was measured, and the decision.

    `verdict` is `None` if nothing faster was predicted. `confirmed` is the best option as measured. `starts` are the
    seconds of each restart.
    """

    model: Model
    options: tuple[Option, ...]
    best: Option
    tried: tuple[Tried, ...]
    current: Tried
    plain: Tried
    confirmed: Tried
    verdict: Verdict | None
    starts: tuple[float, ...]
    sequences: Sequences | None = None

    @property
    def proposal(self) -> Option | None:
        """The drafts to use; `None` if those of `.env` are as fast."""
        return self.best if self.verdict is not None and self.verdict.wins else None

    @property
    def head(self) -> HeadComparison | None:
        """The MTP head beside the drafter; `None` if the head was not measured."""
        return compare_head(self.options)

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings to write into `.env`."""
        drafts = self.proposal.settings if self.proposal else {}
        return {**drafts, **(self.sequences.settings if self.sequences else {})}


def estimate(
    experiment: Experiment, last: Pace | None, *, start_s: float = 0.0, tokens_per_s: float = 0.0
) -> tuple[float, Pace]:
    """About how many seconds a run takes, and the pace that this assumes: `last`, if there was an earlier run.

    Else `start_s` and `tokens_per_s` count, each 0 if it is not known. It counts a start and a measurement for each
    setting, the proposal and the way back, all answers as fast as at concurrency 1 without speculative decoding.
    """
    expected = [speed.plain[0] for speed in experiment.plan.speed if speed.plain and speed.concurrency == 1]
    rate = tokens_per_s or min(expected, default=0.0)
    pace = last or Pace(start_s or ASSUMED_START_S, rate or ASSUMED_TOKENS_PER_S, assumed=not rate)
    answering = sum(_tokens(experiment, count) for count in experiment.sweep.concurrency) / pace.tokens_per_s
    runs = len(experiment.steps) + (4 if experiment.sequences else 2)
    return runs * (pace.start_s + experiment.sweep.repeats * answering) - pace.start_s, pace


def run(experiment: Experiment, *, patience: float, reporter: MeasurementReporter) -> Outcome:
    """Measure, decide, measure the proposal. Then the engine runs with `.env` again, which is not written.

    Raises EngineNotReady, PreflightRefused, BenchmarkMissed, DirectoryBusy.
    """
    deployment, plan = experiment.deployment, experiment.plan
    with ExitStack() as stack:
        stack.enter_context(command_lock(deployment, "tune"))
        endpoint = stack.enter_context(endpoint_of(deployment, plan))
        served_names(endpoint, hint=START_IT, redact=deployment.redact)
        stack.enter_context(set_apart(deployment, reporter.note))
        display = partial(show_redacted, reporter.starting, deployment.redact)
        become = stack.enter_context(temporary_settings(deployment, plan, patience=patience, display=display))
        rig = Rig(experiment, endpoint, become, reporter)
        tried = [rig.measure(title, changes) for title, changes in experiment.steps]
        current, plain = tried[0], tried[-1]
        model = fitted(points_of(experiment, tried))
        found = options(
            model,
            max_num_seqs=experiment.max_num_seqs,
            scheduling=experiment.scheduling,
            heads=heads_of(experiment, tried),
        )
        best = choose(found, current.rates)
        reporter.note(f"predicted best: {best.title}")
        confirmed, verdict = _confirmed(rig, best, tried)
        base = confirmed if verdict is not None and verdict.wins else current
        sequences = try_sequences(rig, base) if experiment.sequences else None
        reporter.note("restoring the settings of .env")
    starts = tuple(rig.starts)
    return Outcome(model, tuple(found), best, tuple(tried), current, plain, confirmed, verdict, starts, sequences)


def _confirmed(rig: Rig, best: Option, tried: list[Tried]) -> tuple[Tried, Verdict | None]:
    """The best option as measured, and its verdict; the present settings and `None` if it is not faster.

    The present settings are measured once more at the end, where they return anyway: a machine that became slower or
    faster meanwhile shows in them.
    """
    current = tried[0]
    if not compared(best.rates, current.rates).wins:
        return current, None
    known = [one for one in tried if one.settings and dict(one.settings) == best.settings]
    confirmed = known[0] if known else rig.measure(best.title, best.settings)
    again = rig.measure(f"{current.title}, again", {})
    tried += [again] if known else [confirmed, again]
    return confirmed, between(current.rates, confirmed.rates, again.rates)


def points_of(experiment: Experiment, tried: Sequence[Tried]) -> Iterator[Point]:
    """What is measured with a fixed number of draft tokens of the drafter, or without drafts."""
    heads = [mtp_head(count) for count in experiment.head_counts]
    for one in tried:
        if one.settings in heads:
            continue
        count = 0 if one.settings == OFF else int(one.settings.get(Settings.dflash_num_spec_tokens.name, 0))
        if not one.settings:
            if experiment.current_count is None:
                continue
            count = experiment.current_count
        for row in one.rows:
            yield point_of(row, count)


def heads_of(experiment: Experiment, tried: Sequence[Tried]) -> dict[int, tuple[float, ...]]:
    """Tokens/s with the MTP head by concurrency, for each of its numbers of draft tokens."""
    return {count: one.rates for count in experiment.head_counts for one in tried if one.settings == mtp_head(count)}


def _tokens(experiment: Experiment, concurrency: int) -> int:
    """The most tokens that one repeat is answered with."""
    workload = experiment.sweep.workloads[0]
    longest = [body["max_tokens"] for body in workload.bodies("", experiment.sweep.limits)]
    whole = sum(tokens for tokens in longest if isinstance(tokens, int))
    return whole * experiment.sweep.requests_of(workload, concurrency) // len(longest)
