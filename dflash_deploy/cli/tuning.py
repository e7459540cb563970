"""What `tune` does to a deployment: measure it under some settings, decide, and measure the proposal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from dflash_deploy.cli.report import note

if TYPE_CHECKING:
    from dflash_deploy.bench.figures import Row
    from dflash_deploy.bench.sweep import Sweep
    from dflash_deploy.bench.tune_choose import Option, Verdict
    from dflash_deploy.bench.tune_model import Model, Point
    from dflash_deploy.cli.measured import Deployed
    from dflash_deploy.cli.tune_sequences import Sequences
    from dflash_deploy.client import Endpoint
    from dflash_deploy.plan import Plan

ASSUMED_START_S = 120.0
ASSUMED_TOKENS_PER_S = 30.0
"""What a dry run goes by on a machine whose pace nobody knows."""

AS_IT_IS = "as .env has it"
OFF = {"DFLASH_DRAFTER": "off"}


@dataclass(frozen=True)
class Pace:
    """Seconds of one start, and tokens/s of one stream without the drafter."""

    start_s: float
    tokens_per_s: float


@dataclass(frozen=True)
class Tried:
    """The rows of one setting, a row for each number of streams, rising."""

    title: str
    settings: Mapping[str, str]
    rows: tuple[Row, ...]

    @property
    def rates(self) -> tuple[float, ...]:
        """Tokens/s by number of streams."""
        return tuple(row.tokens_per_s for row in self.rows)

    def document(self) -> dict[str, object]:
        """The rows for `--json`."""
        return {"title": self.title, "settings": self.settings, "rows": [row.document() for row in self.rows]}


@dataclass(frozen=True)
class Outcome:
    """What came of it. `verdict` is `None` where nothing better was predicted, `proposal` where nothing won."""

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
        """The drafts that won."""
        return self.best if self.verdict is not None and self.verdict.wins else None

    @property
    def settings(self) -> Mapping[str, str]:
        """What is to be written into `.env`."""
        drafts = self.proposal.settings if self.proposal else {}
        return {**drafts, **(self.sequences.settings if self.sequences else {})}


@dataclass
class Tuning:
    """One deployment and what is measured of it.

    `counts` are the numbers of draft tokens, `slots` is MAX_NUM_SEQS; `sequences` asks for another number of them too.
    """

    subject: Deployed
    sweep: Sweep
    counts: tuple[int, ...]
    slots: int
    scheduling: bool
    sequences: bool = False
    starts: list[float] = field(default_factory=list)

    @property
    def steps(self) -> list[tuple[str, Mapping[str, str]]]:
        """Title and changes of each setting that is measured before anything is decided."""
        now = self.current_count
        rest = [(title_of(count), fixed(count)) for count in self.counts if count != now]
        return [(AS_IT_IS if now is None else title_of(now), {}), *rest, ("no drafter", OFF)]

    def estimate(self, last: Pace | None) -> tuple[float, Pace]:
        """About how many seconds it takes, and what of start and stream that rests on: `last`, where there is one.

        A start and a run for each setting, the proposal and the way back; the answers as fast as those of one plain
        stream.
        """
        predicted = [speed.plain[0] for speed in self.subject.plan.speed if speed.plain and speed.concurrency == 1]
        pace = last or Pace(ASSUMED_START_S, min(predicted, default=ASSUMED_TOKENS_PER_S))
        answering = sum(self._tokens(streams) for streams in self.sweep.concurrency) / pace.tokens_per_s
        runs = len(self.steps) + (4 if self.sequences else 2)
        return runs * (pace.start_s + self.sweep.repeats * answering) - pace.start_s, pace

    def run(self) -> Outcome:
        """Measure, decide, measure the proposal. The engine then runs as `.env` has it, which is not written to."""
        from dflash_deploy.bench.tune_choose import choose, options
        from dflash_deploy.bench.tune_model import fitted
        from dflash_deploy.cli.display import boot_display
        from dflash_deploy.cli.measured import check_answers
        from dflash_deploy.cli.tune_sequences import try_sequences
        from dflash_deploy.deployment import hold
        from dflash_deploy.startup import endpoint_of, temporary_settings

        deployment, plan = self.subject.deployment, self.subject.plan
        display = partial(boot_display, deployment.redact)
        with ExitStack() as stack:
            stack.enter_context(hold(deployment, "tune"))
            endpoint = stack.enter_context(endpoint_of(deployment, plan))
            check_answers(endpoint, hint="start it first: dflash-deploy up", redact=deployment.redact)
            become = stack.enter_context(
                temporary_settings(deployment, plan, patience=self.subject.patience, display=display)
            )
            tried = [self.measure(endpoint, become, title, changes) for title, changes in self.steps]
            current, plain = tried[0], tried[-1]
            model = fitted(self._points(tried))
            found = options(model, slots=self.slots, scheduling=self.scheduling)
            best = choose(found, current.rates)
            note(f"predicted best: {best.title}")
            confirmed, verdict = self._confirmed(best, tried, endpoint, become)
            base = confirmed if verdict is not None and verdict.wins else current
            sequences = try_sequences(self, base, endpoint, become) if self.sequences else None
            note("bringing back what .env says")
        starts = tuple(self.starts)
        return Outcome(model, tuple(found), best, tuple(tried), current, plain, confirmed, verdict, starts, sequences)

    def _confirmed(
        self, best: Option, tried: list[Tried], endpoint: Endpoint, become: Callable[[Plan], None]
    ) -> tuple[Tried, Verdict | None]:
        """The proposal as measured, and against the settings that are there; those themselves where it is no better.

        Those are measured once more at the end, where they come back anyway: a machine that became slower or faster
        meanwhile shows in them.
        """
        from dflash_deploy.bench.tune_choose import between, compared

        current = tried[0]
        if not compared(best.rates, current.rates).wins:
            return current, None
        known = [one for one in tried if one.settings and dict(one.settings) == best.settings]
        confirmed = known[0] if known else self.measure(endpoint, become, best.title, best.settings)
        again = self.measure(endpoint, become, f"{current.title}, again", {})
        tried += [again] if known else [confirmed, again]
        return confirmed, between(current.rates, confirmed.rates, again.rates)

    def measure(
        self,
        endpoint: Endpoint,
        become: Callable[[Plan], None],
        title: str,
        changes: Mapping[str, str],
        sweep: Sweep | None = None,
    ) -> Tried:
        """Let the engine become so, and measure it. Raises BenchmarkMissed where an answer does not come."""
        from dflash_deploy.bench.sweep import run_sweep
        from dflash_deploy.cli.bench import missed

        note(f"measuring: {title}")
        plan = self.plan_with(changes)
        began = time.monotonic()
        become(plan)
        if changes or self.starts:
            self.starts.append(time.monotonic() - began)
        rows = run_sweep(endpoint, sweep or self.sweep, drafter=plan.drafting, show=partial(_progress, title))
        failure = missed(rows, None, ours=True)
        if failure is not None:
            raise failure
        return Tried(title, changes, tuple(rows))

    @property
    def slots_written(self) -> bool:
        """Whether MAX_NUM_SEQS is known, and not left to the engine."""
        return self.subject.plan.values.get("MAX_NUM_SEQS", "").isdigit()

    def plan_with(self, changes: Mapping[str, str]) -> Plan:
        """The plan of the deployment with some settings changed."""
        from dflash_deploy.cli.planned import make_plan
        from dflash_deploy.plan import Choice

        deployment = self.subject.deployment
        return make_plan(Choice(edited={**deployment.values, **changes}), deployment) if changes else self.subject.plan

    def _points(self, tried: Sequence[Tried]) -> Iterator[Point]:
        """What is measured with a fixed number of draft tokens, or none."""
        from dflash_deploy.bench.tune_model import point_of

        for one in tried:
            count = 0 if one.settings == OFF else int(one.settings.get("DFLASH_NUM_SPEC_TOKENS", 0))
            if not one.settings:
                if self.current_count is None:
                    continue
                count = self.current_count
            for row in one.rows:
                yield point_of(row, count)

    @property
    def current_count(self) -> int | None:
        """Draft tokens of a step as `.env` has it; `None` where their number follows a schedule."""
        from dflash_deploy.serve.settings import DRAFT_TOKENS

        values = self.subject.plan.values
        return None if values.get("DFLASH_SPEC_SCHEDULE") else int(values["DFLASH_NUM_SPEC_TOKENS"] or DRAFT_TOKENS)

    def _tokens(self, streams: int) -> int:
        """Tokens that one repeat is answered with at the most."""
        workload = self.sweep.workloads[0]
        longest = [body["max_tokens"] for body in workload.bodies("", self.sweep.limits)]
        whole = sum(tokens for tokens in longest if isinstance(tokens, int))
        return whole * self.sweep.requests_of(workload, streams) // len(longest)


def title_of(count: int) -> str:
    """A fixed number of draft tokens in words."""
    return "1 draft token" if count == 1 else f"{count} draft tokens"


def fixed(count: int) -> dict[str, str]:
    """The settings of a fixed number of draft tokens."""
    return {"DFLASH_NUM_SPEC_TOKENS": str(count), "DFLASH_SPEC_SCHEDULE": ""}


def _progress(title: str, row: Row) -> None:
    from dflash_deploy.bench.figures import streams

    length = f", {row.acceptance_length:.2f} tokens a step" if row.acceptance_length else ""
    note(f"  {title}, {streams(row.concurrency)}: {row.tokens_per_s:.1f} tokens/s{length}")
