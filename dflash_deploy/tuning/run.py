"""Measures a deployment under some settings, decides, and measures the proposal.

The engine is restarted with one setting after the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from dflash_deploy.bench.figures import Row, missed
from dflash_deploy.bench.sweep import Sweep, run_sweep
from dflash_deploy.client.answers import EndpointError
from dflash_deploy.client.endpoint import START_IT, Endpoint, served_names
from dflash_deploy.deployment.lock import command_lock
from dflash_deploy.document import Documented
from dflash_deploy.errors import EngineNotReady
from dflash_deploy.plan.result import Plan
from dflash_deploy.serve.settings import Settings
from dflash_deploy.startup.engine import endpoint_of
from dflash_deploy.startup.progress import ShowProgress, show_redacted
from dflash_deploy.startup.restore import temporary_settings
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


class MeasurementReporter(Protocol):
    """Receives what happens while settings are measured."""

    def note(self, text: str) -> None:
        """One line for people."""

    def starting(self) -> AbstractContextManager[ShowProgress]:
        """Opens what shows the progress of one start of the engine."""

    def measured(self, row: Row, setting: str) -> None:
        """One measurement of a setting has ended."""


@dataclass(frozen=True)
class Tried(Documented):
    """One setting as measured."""

    title: str
    """The setting in words. The text may change."""
    settings: Mapping[str, str]
    """The lines of `.env` that were changed for it, by name."""
    rows: tuple[Row, ...]
    """One row for each concurrency, in rising order."""

    @property
    def rates(self) -> tuple[float, ...]:
        """Tokens/s by concurrency."""
        return tuple(row.tokens_per_s for row in self.rows)


@dataclass
class Rig:
    """The running engine of an experiment. `become` restarts it with a plan; `starts` are the seconds that took."""

    experiment: Experiment
    endpoint: Endpoint
    become: Callable[[Plan], None]
    reporter: MeasurementReporter
    starts: list[float] = field(default_factory=list)

    def measure(self, title: str, changes: Mapping[str, str], sweep: Sweep | None = None) -> Tried:
        """Restart the engine with changed settings and measure it. Raises BenchmarkMissed if a request fails."""
        self.reporter.note(f"measuring: {title}")
        plan = self.experiment.plan_with(changes)
        began = time.monotonic()
        self.become(plan)
        if changes or self.starts:
            self.starts.append(time.monotonic() - began)
        try:
            rows = run_sweep(
                self.endpoint,
                sweep or self.experiment.sweep,
                "dflash" if plan.drafting else "mtp" if plan.uses_mtp_head else "off",
                show=lambda row: self.reporter.measured(row, title),
            )
        except EndpointError as problem:
            raise EngineNotReady(self.experiment.deployment.redact(str(problem)), hint=START_IT) from None
        failure = missed(rows, None, ours=True)
        if failure is not None:
            raise failure
        return Tried(title, changes, tuple(rows))


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
        return self.proposal.settings if self.proposal else {}


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
    runs = len(experiment.steps) + 2
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
        reporter.note("restoring the settings of .env")
    starts = tuple(rig.starts)
    return Outcome(model, tuple(found), best, tuple(tried), current, plain, confirmed, verdict, starts)


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
