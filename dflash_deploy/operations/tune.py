"""`tune`: find the drafts that are fastest on this machine, and write them into `.env` on consent."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dflash_deploy import __version__
from dflash_deploy.bench.sweep import Sweep
from dflash_deploy.bench.workload import Limits, choose, described
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import PRIVATE, write_atomically
from dflash_deploy.deployment.journal import record
from dflash_deploy.deployment.lock import command_lock
from dflash_deploy.document import SCHEMA, as_document
from dflash_deploy.operations import bench
from dflash_deploy.operations.bench import LIMITS, plain_speed
from dflash_deploy.operations.plan import EVIDENCE, last_evidence
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.operations.work import MEASURING, engine_work
from dflash_deploy.planning import plan_of
from dflash_deploy.startup import PATIENCE
from dflash_deploy.startup.engine import endpoint_of
from dflash_deploy.startup.progress import usual_seconds
from dflash_deploy.tuning.experiment import (
    Experiment,
    check_tunable,
    knows_schedules,
    pooled,
    prepare,
    usual_concurrency,
)
from dflash_deploy.tuning.run import Outcome, Pace, estimate, run


def plan_tuning(
    directory: Path,
    *,
    workloads: Sequence[str] = (),
    prompts: Path | None = None,
    concurrency: Sequence[int] = (),
    draft_tokens: Sequence[int] = (),
    schedule: bool = True,
    heads: Sequence[int] | None = None,
    limits: Limits = LIMITS,
    requests: int | None = None,
    repeats: int = 3,
    context: int = 0,
) -> Experiment:
    """What `tune` would measure; nothing is started.

    `draft_tokens` are the numbers to measure, 1 and the most if none are given. `schedule` allows to propose fewer
    draft tokens at higher concurrency. `heads` are the numbers to measure with the
    target's MTP head; `None`: 2 if it has one. Each prompt has `context` tokens of a conversation before it.
    Raises NotPossible, BadInput, NoDeployment.
    """
    deployment = Deployment.existing(directory)
    plan = plan_of(deployment)
    check_tunable(plan)
    sweep = Sweep(
        workloads=(pooled(choose(workloads, prompts, plan.pair)),),
        concurrency=tuple(concurrency) or usual_concurrency(plan),
        limits=limits,
        repeats=repeats,
        requests=requests,
        context=context,
    )
    scheduling = schedule and knows_schedules(plan)
    return prepare(deployment, plan, sweep, draft_tokens, scheduling=scheduling, heads=heads)


def estimated(experiment: Experiment) -> tuple[float, Pace]:
    """About how many seconds it takes, and the pace that this assumes: that of runs here, if there were any."""
    deployment = experiment.deployment
    baseline = plain_speed(deployment, experiment.plan).tpot_seconds
    measured = 1 / baseline[min(baseline)] if baseline else _drafted_speed(deployment)
    return estimate(
        experiment,
        _last_pace(deployment),
        start_s=sum(usual_seconds(deployment).values()),
        tokens_per_s=measured,
    )


def _drafted_speed(deployment: Deployment) -> float:
    """Steps per second of one client in the last run of `bench`; 0 if it is unknown.

    A step without drafts is faster than one that verifies some, so that the estimate of the time stays a limit.
    """
    last = bench.last_figures(deployment)
    rows = last.rows if last else ()
    least = min((row.concurrency for row in rows), default=0)
    rates = [
        row.output_tokens / row.duration_s / row.concurrency / (row.acceptance_length or 1.0)
        for row in rows
        if row.concurrency == least
    ]
    return statistics.fmean(rates) if rates else 0.0


@dataclass(frozen=True)
class Tuned:
    """The outcome of a run, and the settings of it that `.env` does not have yet."""

    experiment: Experiment
    outcome: Outcome
    changes: Mapping[str, str]
    written: bool = False

    @property
    def evidence_file(self) -> Path:
        """The figures of this run."""
        return self.experiment.deployment.state / EVIDENCE

    def document(self) -> dict[str, object]:
        """The `data` of `tune --json`."""
        found: dict[str, object] = as_document(_document(self.experiment, self.outcome))
        return found | {"changes": self.changes, "written": self.written}


def never(tuned: Tuned) -> bool:
    """Consent to nothing."""
    return False


def tune(
    experiment: Experiment,
    *,
    patience: float = PATIENCE,
    agree: Callable[[Tuned], bool] = never,
    reporter: Reporter = SILENT,
) -> Tuned:
    """Measure, decide, and write the proposal into `.env` if `agree` returns true for it.

    The engine restarts for each setting, and requests of others are not answered meanwhile; afterwards it runs with its
    own settings again. Call it from the main thread of a program. Raises EngineNotReady, BenchmarkMissed.
    """
    deployment = experiment.deployment
    with engine_work(deployment, "tune", reporter, MEASURING):
        outcome = run(experiment, patience=patience, reporter=reporter)
        record(deployment, "measured", "tune", f"restarted the engine {len(outcome.starts)} times, then with .env")
    changes = changes_of(deployment, outcome.settings)
    proposed = Tuned(experiment, outcome, changes)
    done = Tuned(experiment, outcome, changes, written=bool(changes) and agree(proposed))
    _keep(done)
    if done.written:
        with command_lock(deployment, "tune"):
            deployment.with_values(changes, why=evidence_of(prompts_of(experiment), outcome))
        written = (f"{name}={value}" for name, value in changes.items())
        record(deployment, "settings", "tune", f"wrote {' '.join(written)} to .env")
    return done


def changes_of(deployment: Deployment, settings: Mapping[str, str]) -> dict[str, str]:
    """Those of the settings that differ in `.env`."""
    return {name: value for name, value in settings.items() if deployment.values.get(name, "") != value}


def prompts_of(experiment: Experiment) -> str:
    """The workload in words, with the length of the conversations before its prompts."""
    sweep = experiment.sweep
    return sweep.workloads[0].name + (f" after {sweep.context:,} tokens" if sweep.context else "")


def evidence_of(workload: str, outcome: Outcome) -> list[str]:
    """The figures behind a proposal, as comments for `.env`: a line for each setting."""
    concurrency = ", ".join(map(str, outcome.model.streams))
    titles = [one.title for one in outcome.tried]
    head = "tokens/s at concurrency"
    width = max(map(len, (head, *titles)))
    return [
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, prompts: {workload}",
        f"{head:{width}}  {concurrency}",
        *(f"{one.title:{width}}  {', '.join(f'{rate:.1f}' for rate in one.rates)}" for one in outcome.tried),
    ]


def _last_pace(deployment: Deployment) -> Pace | None:
    """How fast the last run went; `None` if there was none, or its file was changed."""
    evidence = last_evidence(deployment)
    if evidence is None:
        return None
    starts, points = evidence.data.measured.seconds_of_starts, evidence.data.points
    plain = [point.tokens_per_s / point.streams for point in points if not point.draft_tokens]
    return Pace(statistics.fmean(starts), max(plain)) if starts and plain else None


def _document(experiment: Experiment, outcome: Outcome) -> dict[str, object]:
    sweep = experiment.sweep
    with endpoint_of(experiment.deployment, experiment.plan) as endpoint:
        description = bench.described_target(experiment.plan, endpoint.model)
    return {
        "measured": description
        | {
            "at": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            "version": __version__,
            "repeats": sweep.repeats,
            "temperature": sweep.limits.temperature,
            "thinking": sweep.limits.thinking,
            "context": sweep.context,
            "seconds_of_starts": outcome.starts,
        },
        "workloads": described(sweep.workloads),
        "points": outcome.model.points,
        "lengths": outcome.model.lengths,
        "steps": tuple(outcome.model.lines.values()),
        "options": outcome.options,
        "head": outcome.head,
        "best": outcome.best,
        "tried": outcome.tried,
        "verdict": outcome.verdict,
        "proposal": outcome.proposal,
    }


def _keep(done: Tuned) -> None:
    text = json.dumps({"schema": SCHEMA, "command": "tune", "data": done.document()}, indent=2, ensure_ascii=False)
    deployment = done.experiment.deployment
    write_atomically(deployment.make_state() / EVIDENCE, deployment.redact(text) + "\n", mode=PRIVATE)
