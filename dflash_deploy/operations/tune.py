"""`tune`: find the drafts that are fastest on this machine, and write them into `.env` on consent.

It measures the settings of `.env`, another number of draft tokens, and no drafter. The best of what these predict and
the settings of `.env` are then measured again. The engine restarts for each setting.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path

from dflash_deploy.bench.figures import Row, missed
from dflash_deploy.bench.sweep import Sweep, run_sweep
from dflash_deploy.bench.workload import AGENTS, DescribedWorkload, Limits, Workload, choose, described
from dflash_deploy.client.answers import EndpointError
from dflash_deploy.client.endpoint import START_IT, served_names
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import PRIVATE, write_atomically
from dflash_deploy.deployment.journal import engine_work, record
from dflash_deploy.deployment.lock import command_lock
from dflash_deploy.document import (
    SCHEMA,
    AcceptanceLength,
    Count,
    Documented,
    Hidden,
    Positive,
    Rate,
    Ratio,
    shown,
)
from dflash_deploy.errors import BadInput, EngineNotReady, NotPossible
from dflash_deploy.operations.bench import LIMITS, Measured, circumstances, described_target, speculation_of_plan
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.operations.restarts import check_speculating
from dflash_deploy.plan.command import engine_command
from dflash_deploy.plan.result import Plan
from dflash_deploy.planning import plan_of, plan_with
from dflash_deploy.serve.settings import Settings
from dflash_deploy.startup import PATIENCE
from dflash_deploy.startup.engine import endpoint_of
from dflash_deploy.startup.progress import show_redacted
from dflash_deploy.startup.restore import temporary_settings
from dflash_deploy.tuning import choose as decide
from dflash_deploy.tuning.choose import OFF, Model, Option, Verdict, fixed, title_of

MOST_CONCURRENT = 16  # if MAX_NUM_SEQS is left to the engine
# A title, the settings that change, and draft tokens: `None` if they follow a schedule.
Step = tuple[str, Mapping[str, str], int | None]

_BY_HAND = f"compare by hand: another {Settings.dflash_num_spec_tokens} in .env, `up`, `bench --baseline`"


@dataclass(frozen=True)
class Tuning:
    """What is measured of a deployment. The first step is `.env`, the last one no drafter."""

    deployment: Deployment
    plan: Plan
    sweep: Sweep
    steps: Sequence[Step]


def plan_tuning(
    directory: Path,
    *,
    workloads: Sequence[str] = (),
    prompts: Path | None = None,
    concurrency: Sequence[int] = (),
    draft_tokens: Sequence[int] = (),
    limits: Limits = LIMITS,
    requests: int | None = None,
    repeats: int = 3,
    context: int = 0,
) -> Tuning:
    """What `tune` would measure; nothing is started.

    `draft_tokens` are the numbers to measure, 1 and the most if none are given. Each prompt has `context` tokens of a
    conversation before it. Raises NoDeployment, BadInput, and NotPossible without a drafter, and for an engine without
    counters of drafts by position.
    """
    deployment = Deployment.existing(directory)
    plan = plan_of(deployment)
    if plan.uses_mtp_head:
        raise NotPossible("tune is for a drafter; .env has the target's MTP head", hint=_BY_HAND)
    check_speculating(plan, "it has no drafter to tune")
    if not plan.engine.kind.counts_by_position:
        raise NotPossible(
            f"{plan.engine.title} has no counters of accepted drafts by position, which tune needs", hint=_BY_HAND
        )
    most, limit = plan.pair.drafter.most_draft_tokens, plan.settings.max_num_seqs or MOST_CONCURRENT
    at = tuple(sorted(set(concurrency) or {one for one in (1, 2, 4, 8, 16) if one <= limit}))
    sweep = Sweep((_pooled(choose(workloads, prompts, plan.pair)),), at, limits, repeats, requests, context=context)
    if max(at) > limit:
        raise NotPossible(
            f"the engine answers {limit} requests at the same time, not {max(at)}",
            hint=f"leave out concurrency above {limit}, or raise {Settings.max_num_seqs} in .env",
        )
    if any(not 1 <= count <= most for count in draft_tokens):
        raise NotPossible(
            f"the drafter {plan.pair.drafter.repo or plan.pair.name} makes 1 to {most} draft tokens a step",
            hint=f"such as --draft-tokens 1,{most}",
        )
    now = None if plan.settings.dflash_spec_schedule else plan.settings.draft_tokens
    counts = sorted(set(draft_tokens) or {1, most})
    if len({*counts, now or counts[0]}) < 2:
        # one number says nothing about others
        counts = sorted({1, most})
    steps: list[Step] = [("as .env has it" if now is None else title_of(now), {}, now)]
    steps += [(title_of(count), fixed(count), count) for count in counts if count != now]
    steps.append((title_of(0), OFF, 0))
    # engine and rules are checked before the engine is stopped
    for _, changes, _ in steps:
        one = plan_with(deployment, changes)
        engine_command(one)
        for finding in one.errors:
            raise NotPossible(finding.message, hint=finding.fix)
    return Tuning(deployment, plan, sweep, steps)


def _pooled(workloads: Sequence[Workload]) -> Workload:
    """Several workloads as one, a prompt of each in turn: one setting must suit them all."""
    if any(one.name == AGENTS for one in workloads):
        raise BadInput(f"`{AGENTS}` cannot be tuned for", hint="long conversations: --workload code --context 16000")
    turns = chain.from_iterable(zip_longest(*(one.questions for one in workloads)))
    name, source = (" + ".join(parts) for parts in zip(*((one.name, one.source) for one in workloads), strict=True))
    return Workload(name, source, tuple(question for question in turns if question is not None))


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


@dataclass(frozen=True)
class Tuned(Documented):
    """The result of `tune`. `.dflash/tune.json` has the same `data`."""

    tuning: Hidden[Tuning]
    measured: Measured
    """What was measured, and how."""
    workloads: Sequence[DescribedWorkload]
    """The workloads, measured as one mixture."""
    lengths: Sequence[AcceptanceLength]
    """Predicted tokens per step by number of draft tokens, from 0 on."""
    tried: Sequence[Tried]
    """All settings that were measured; the settings of `.env` are the first."""
    predicted: Mapping[str, Sequence[Rate]]
    """Tokens per second by concurrency of each setting that can be proposed, by its title."""
    option: Hidden[Option]
    verdict: Hidden[Verdict | None] = None
    """`None` if nothing faster was predicted."""
    written: bool = False
    """Whether they were written into `.env`."""

    @property
    @shown
    def best(self) -> str:
        """Title of the best setting by prediction."""
        return self.option.title

    @property
    @shown
    def gain(self) -> Ratio | None:
        """Mean of its tokens/s divided by those of `.env`, both measured; null if it is not predicted to be faster."""
        return self.verdict.gain if self.verdict else None

    @property
    @shown
    def noise(self) -> Ratio | None:
        """Share by which two runs of one setting differed; a proposal gains more. Null as `gain`."""
        return self.verdict.noise if self.verdict else None

    @property
    @shown
    def changes(self) -> Mapping[str, str]:
        """The settings of the proposal that differ from `.env`; empty if the settings of `.env` are kept."""
        wanted = self.proposal.settings if self.proposal else {}
        return {name: value for name, value in wanted.items() if self.tuning.deployment.values.get(name, "") != value}

    @property
    def proposal(self) -> Option | None:
        """The drafts to use; `None` if those of `.env` are as fast."""
        return self.option if self.verdict is not None and self.verdict.wins else None

    @property
    def sentence(self) -> str:
        """The decision in words."""
        if self.verdict is None:
            return "keep      the settings of .env: nothing is predicted to be faster"
        gain, best = f"{self.verdict.gain:.2f} times as fast", self.best
        if self.proposal is None:
            two = f"not more than two runs differ ({self.verdict.noise:.0%})"
            return f"keep      the settings of .env: {best} was {gain}, {two}"
        return f"proposed  {best}: {gain} as the settings of .env, at least {self.verdict.least:.2f}"


def tune(
    tuning: Tuning,
    *,
    patience: float = PATIENCE,
    agree: Callable[[Tuned], bool] = lambda _: False,
    reporter: Reporter = SILENT,
) -> Tuned:
    """Measure, decide, and write the proposal into `.env` if `agree` returns true for it.

    The engine restarts for each setting, and requests of others are not answered meanwhile; afterwards it runs with its
    own settings again, also after an error. Call it from the main thread of a program. Raises EngineNotReady,
    PreflightRefused, BenchmarkMissed, DirectoryBusy.
    """
    deployment = tuning.deployment
    with engine_work(deployment, "tune"), command_lock(deployment, "tune"):
        done = _run(tuning, patience, reporter)
        runs = len(done.tried)
        record(deployment, "measured", "tune", f"measured {runs} settings, then restarted the engine with .env")
    if done.changes and agree(done):
        with command_lock(deployment, "tune"):
            deployment.with_values(done.changes, why=[f"tune, {done.measured.at}: {done.sentence}"])
        written = " ".join(f"{name}={value}" for name, value in done.changes.items())
        record(deployment, "settings", "tune", f"wrote {written} to .env")
        done = replace(done, written=True)
    text = json.dumps({"schema": SCHEMA, "command": "tune", "data": done.document()}, indent=2, ensure_ascii=False)
    write_atomically(deployment.make_state() / "tune.json", deployment.redact(text) + "\n", mode=PRIVATE)
    return done


def _run(tuning: Tuning, patience: float, reporter: Reporter) -> Tuned:
    deployment, plan = tuning.deployment, tuning.plan
    display = partial(show_redacted, reporter.starting, deployment.redact)
    with endpoint_of(deployment, plan) as endpoint:
        served_names(endpoint, hint=START_IT, redact=deployment.redact)
        with temporary_settings(deployment, plan, patience=patience, display=display) as restart_with:

            def measure(title: str, changes: Mapping[str, str]) -> Tried:
                """Restart the engine with changed settings and measure it."""
                reporter.note(f"measuring: {title}")
                one = plan_with(deployment, changes) if changes else plan
                restart_with(one)
                rows = run_sweep(
                    endpoint, tuning.sweep, speculation_of_plan(one), show=lambda row: reporter.measured(row, title)
                )
                if failure := missed(rows, None, ours=True):
                    raise failure
                return Tried(title, changes, tuple(rows))

            try:
                tried = [measure(title, changes) for title, changes, _ in tuning.steps]
                how = circumstances(tuning.sweep.limits, tuning.sweep.repeats)
                target = described_target(plan, endpoint.model)
                done = decided(tuning, Measured(**target, **how, context=tuning.sweep.context), tried)
                reporter.note(f"predicted best: {done.best}")
                if decide.gain_of(done.option.rates, tried[0].rates) > 1 + decide.NOISE:
                    best = measure(f"{done.best}, again", done.option.settings)
                    done = confirmed(done, best, measure(f"{tried[0].title}, again", {}))
            except EndpointError as problem:
                raise EngineNotReady(deployment.redact(str(problem)), hint=START_IT) from None
            reporter.note("restoring the settings of .env")
    return done


def decided(tuning: Tuning, measured: Measured, tried: Sequence[Tried]) -> Tuned:
    """What these runs, one for each step, predict to be the best."""
    model = Model({count: one.rows for (*_, count), one in zip(tuning.steps, tried, strict=True) if count is not None})
    limit = tuning.plan.settings.max_num_seqs or MOST_CONCURRENT
    scheduling = tuning.plan.engine.kind.schedules_drafts(tuning.plan.engine_version)
    found = decide.options(model, max_num_seqs=limit, scheduling=scheduling)
    predicted = {option.title: option.rates for option in found}
    best = decide.choose(found, tried[0].rates)
    return Tuned(tuning, measured, described(tuning.sweep.workloads), model.lengths, tried, predicted, best)


def confirmed(done: Tuned, best: Tried, current: Tried) -> Tuned:
    """The verdict, with second runs of the best option and of `.env`."""
    known = [one.rates for one in done.tried if dict(one.settings) == done.option.settings]
    verdict = decide.verdict([*known, best.rates], [done.tried[0].rates, current.rates])
    return replace(done, verdict=verdict, tried=(*done.tried, best, current))


@dataclass(frozen=True)
class TuneStep(Documented):
    """One setting that `tune` would measure."""

    title: str
    """The setting in words. The text may change."""
    settings: Mapping[str, str]
    """The lines of `.env` that would be changed for it, by name."""


@dataclass(frozen=True)
class TunePlan(Documented):
    """What `tune --dry-run` would measure."""

    workload: DescribedWorkload
    """The workload."""
    concurrency: Sequence[Positive]
    """Requests at the same time, one measurement for each number."""
    repeats: Positive
    """Repeats of each measurement."""
    context: Count
    """Tokens of a conversation before each prompt."""
    steps: Sequence[TuneStep]
    """The settings, in the order of their measurement; the engine restarts for each one."""


def dry_run(tuning: Tuning) -> TunePlan:
    """What would be measured, as a document."""
    sweep, steps = tuning.sweep, [TuneStep(title, changes) for title, changes, _ in tuning.steps]
    return TunePlan(described(sweep.workloads)[0], sweep.concurrency, sweep.repeats, sweep.context, steps)
