"""`up`, `restart` and `rollback`: fetch what is missing, start the engine, check it, and go back if it fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from dflash_deploy.checks.check import CheckResult, deployed_endpoint
from dflash_deploy.checks.run import QUICK, CheckReport, run_checks
from dflash_deploy.deployment.directory import Change, Deployment, changes, last_good, remember_good
from dflash_deploy.deployment.journal import engine_work, record
from dflash_deploy.deployment.lock import locked
from dflash_deploy.deployment.upgrading import forget_upgrade
from dflash_deploy.document import AcceptanceLength, Documented, Hidden, Positive, Rate, Seconds
from dflash_deploy.errors import (
    DeployError,
    EngineAsked,
    EngineNotReady,
    Fixed,
    NotPossible,
    PreflightRefused,
    SmokeTestFailed,
    WeightsMissing,
)
from dflash_deploy.operations.pull import fetch_missing
from dflash_deploy.operations.reporter import SILENT, Reporter, start_shown
from dflash_deploy.plan.result import Choice, Plan, RuntimeName
from dflash_deploy.planning import make_plan, plan_of
from dflash_deploy.runtime.registry import another_tag, ask_tag, image_here
from dflash_deploy.runtime.select import runtime_for
from dflash_deploy.startup import PATIENCE
from dflash_deploy.startup.engine import endpoint_of, whole_url
from dflash_deploy.startup.progress import remember_seconds
from dflash_deploy.startup.restore import apply_fix, fix_changes, restore_last_good
from dflash_deploy.startup.start import bring_up, preflight, start_worker
from dflash_deploy.weights.pull import requested_models


def with_weights(deployment: Deployment, reporter: Reporter, *, ask: bool) -> Plan:
    """The plan, after missing weights were fetched: their configuration may change it.

    `ask`: the engine makes its configuration from config.json first. Raises PreflightRefused and DownloadFailed.
    """
    plan = plan_of(deployment)
    try:
        # `joining`: whether this machine answers requests is checked when it is started
        preflight(deployment, plan, runtime_for(deployment, plan), joining=True)
    except WeightsMissing:
        wanted = requested_models(deployment, plan)
        if not wanted:
            raise
        try_base_image(plan, reporter)
        if ask:
            from dflash_deploy.operations.ask_engine import ask_before_download  # noqa: PLC0415 - most starts fetch nothing

            ask_before_download(deployment, plan, reporter)
        reporter.note("weights are missing: fetching them, as `dflash-deploy pull` does")
        fetch_missing(deployment, wanted, reporter=reporter)
        return plan_of(deployment)
    try_base_image(plan, reporter)
    return plan


def try_base_image(plan: Plan, reporter: Reporter) -> None:
    """Ask the registry for the tag of a base image that has to be pulled. Raises PreflightRefused if it is not there.

    A registry that does not say, as without a network, is noted: the pull itself may have another way to it.
    """
    base = plan.settings.dflash_base_image
    if plan.runtime != "compose" or not base or image_here(plan):
        return
    answer = ask_tag(base)
    if answer.exists is None:
        reporter.note(answer.about(base))
    elif not answer.exists:
        raise PreflightRefused(answer.about(base), hint=another_tag(base, answer))


@dataclass(frozen=True)
class Started(Documented):
    """An engine that answers, after `up`, `restart` or `rollback`, and the result of the quick checks of `test`."""

    deployment: Hidden[Deployment]
    plan: Hidden[Plan]
    report: Hidden[CheckReport]
    answer: Hidden[str]
    endpoint: str
    """Base URL for OpenAI clients; it ends with `/v1`."""
    state: Literal["ready"]
    """The engine has answered a request."""
    model: str
    """Name of the model in requests."""
    runtime: RuntimeName
    """What runs the engine: containers (`compose`) or a process on this machine (`native`)."""
    changed: bool
    """Whether the engine was started; false if it answered already."""
    seconds: Seconds
    """Seconds from the beginning of the start to the first answer."""
    tokens_per_second: Rate | None
    """Tokens per second of one short answer; null if it was not measured."""
    acceptance_length: AcceptanceLength | None
    """Acceptance length of that answer, in tokens per step; null if nothing was drafted or counted."""
    checks: Sequence[CheckResult]
    """The quick checks of `test`, with which a start ends."""
    fixed: Fixed | None
    """What `up --fix` changed; null if it changed nothing."""
    restored: Sequence[str] | None = None
    """Names of the settings that `rollback` restored in `.env`; missing after `up` and `restart`."""
    first: Hidden[bool] = False

    @property
    def can_pin(self) -> bool:
        """Whether this was the first good start, and a tag names the base image, which it may not do for ever."""
        tagged = self.runtime == "compose" and "@" not in self.plan.settings.dflash_base_image
        return self.first and self.failure is None and tagged

    @property
    def failure(self) -> SmokeTestFailed | None:
        """The first check that failed, as an error; `None` if all passed. The engine keeps running either way."""
        if not self.report.failed:
            return None
        first = self.report.failed[0]
        return SmokeTestFailed(
            f"the engine answers, but `{first.name}` failed: {' '.join(first.got.split())}",
            hint=f"{first.hint or first.asked}; `dflash-deploy test` runs all checks",
        )

    @property
    def passed(self) -> tuple[str, ...]:
        """The names of the checks that passed."""
        return tuple(check.name for check in self.report.checks if check.status == "passed")


@dataclass(frozen=True)
class Start:
    """How an engine is started. `patience` is in seconds without a sign of progress.

    `remembers`: settings that pass the checks are the last good ones from now on.
    """

    patience: float
    reporter: Reporter
    remembers: bool = True

    def start_and_check(self, deployment: Deployment, plan: Plan) -> Started:
        """Start the engine, or find it running, and check it; remember the settings if all its checks pass.

        Raises PreflightRefused, SettingsRefused and EngineNotReady.
        """
        with start_shown(self.reporter, deployment.redact) as show:
            ready = bring_up(deployment, plan, runtime_for(deployment, plan), patience=self.patience, show=show)
        if ready.changed:
            remember_seconds(deployment, ready.phases)
        with endpoint_of(deployment, plan) as endpoint:
            checks = run_checks(deployed_endpoint(endpoint, plan), QUICK)
        started = Started(
            deployment,
            plan,
            checks,
            ready.first_answer.text.strip(),
            endpoint=f"{whole_url(deployment, plan)}/v1",
            state="ready",
            model=ready.model,
            runtime=ready.runtime,
            changed=ready.changed,
            seconds=round(ready.seconds, 1),
            tokens_per_second=ready.tokens_per_second and round(ready.tokens_per_second, 1),
            acceptance_length=ready.acceptance_length and round(ready.acceptance_length, 2),
            checks=checks.redacted(deployment.redact),
            fixed=None,
        )
        if started.failure is None and self.remembers:
            remember_good(deployment)
        return started

    def start_or_restore(self, deployment: Deployment, plan: Plan) -> Started:
        """The same. Raises RolledBack in place of EngineNotReady if the last good settings run again."""
        try:
            return self.start_and_check(deployment, plan)
        except EngineNotReady as problem:
            raise self.restored_after(deployment, problem) from None

    def restored_after(self, deployment: Deployment, problem: EngineNotReady) -> EngineNotReady:
        """The failure to report, after the last good settings were started again if there are any.

        One of several machines cannot go back without the others.
        """
        ranks, good = plan_of(deployment).settings.several_machines, last_good(deployment)
        # one rank with other settings does not join the others
        if isinstance(problem, EngineAsked) or ranks or good is None or not changes(deployment):
            return problem
        with start_shown(self.reporter, deployment.redact) as show:
            return restore_last_good(deployment, problem, plan_of, runtime_for, patience=self.patience, show=show)


@dataclass(frozen=True)
class Worker(Documented):
    """An engine that computes for rank 0 and answers no requests itself."""

    rank: Positive
    """Rank of this machine."""
    master: str
    """Address of rank 0 on the link between the machines."""
    state: Literal["running"]
    """The engine runs; rank 0 answers requests."""
    runtime: RuntimeName
    """What runs the engine: containers (`compose`) or a process on this machine (`native`)."""
    changed: bool
    """Whether the engine was started; false if it was running already."""


@dataclass(frozen=True)
class Unready(Documented):
    """Why the engine did not become ready."""

    failure: str | None
    """Id of the known failure, as in docs/reference/failures.md; null if it is unknown."""
    fix: Mapping[str, str]
    """The settings that `up --fix` may write to fix it; empty if no change is safe."""
    evidence: Sequence[str]
    """Lines of the engine's log that show the failure, or its most relevant lines."""
    fixed: Fixed | None = None
    """What `--fix` changed before this failure; missing if it changed nothing."""


def start(
    directory: Path,
    *,
    patience: float = PATIENCE,
    fix: bool = False,
    ask_engine: bool = True,
    reporter: Reporter = SILENT,
) -> Started | Worker:
    """Start the engine of a deployment, fetch missing weights before, and wait until it has answered a question.

    With `ask_engine` the engine makes its configuration from config.json before weights are fetched.
    `fix` changes `.env` once if the engine fails for a known reason with a safe change, and starts it again. Raises
    NoDeployment, SettingsRefused, PreflightRefused, DownloadFailed; EngineNotReady, or RolledBack if the last good
    settings run again. The engine answers if it returns a `Started`, whose `failure` has the checks that failed.
    """
    how = Start(patience, reporter)
    with ExitStack() as stack:
        deployment = stack.enter_context(locked(directory, "up"))
        stack.enter_context(engine_work(deployment, "up"))
        forget_upgrade(deployment)
        plan = with_weights(deployment, reporter, ask=ask_engine)
        changed, first = changes(deployment), last_good(deployment) is None
        for change in changed:
            reporter.note(f"changed since the last good start: {change}")
        answers = plan.settings.answers_requests
        try:
            if not answers:
                with start_shown(reporter, deployment.redact) as show:
                    started = start_worker(deployment, plan, runtime_for(deployment, plan), show=show)
                return Worker(plan.settings.node_rank, plan.settings.master_addr, "running", plan.runtime, started)
            return replace(_recorded(how.start_and_check(deployment, plan), "up", changed), first=first)
        except EngineNotReady as problem:
            # a setting that changes on one of several machines must change on all
            safe = _safe_changes(deployment, plan, problem) if answers else {}
            if fix and safe:
                return _once_more(deployment, problem, safe, how)
            failed = how.restored_after(deployment, problem)
            failed.hint += _about_fix(safe, asked=fix)
            raise failed from None


def restart(directory: Path, *, patience: float = PATIENCE, reporter: Reporter = SILENT) -> Started:
    """Stop the engine and start it with the settings of `.env`, whether they changed or not. Raises as `start`."""
    with ExitStack() as stack:
        deployment = stack.enter_context(locked(directory, "restart"))
        stack.enter_context(engine_work(deployment, "restart"))
        plan, changed = plan_of(deployment), changes(deployment)
        reporter.note("requests in progress get up to 45 s to finish")
        runtime = runtime_for(deployment, plan)
        # problems are found while the engine still runs
        preflight(deployment, plan, runtime)
        runtime.halt()
        return _recorded(Start(patience, reporter).start_or_restore(deployment, plan), "restart", changed)


def roll_back(directory: Path, *, patience: float = PATIENCE, reporter: Reporter = SILENT) -> Started:
    """Write the settings of the last good start into `.env`, and start them. Raises NotPossible, and as `start`."""
    with locked(directory, "rollback", check=False) as deployment, engine_work(deployment, "rollback"):
        if last_good(deployment) is None:
            raise NotPossible(
                "no settings to restore: this deployment has not had a good start yet",
                hint="`dflash-deploy up` starts it",
            )
        started, rows = start_good(deployment, Start(patience, reporter))
        record(started.deployment, "ready", "rollback", "; ".join(["the last good settings", *map(str, rows)]))
    return replace(started, restored=tuple(row.name for row in rows))


def start_good(deployment: Deployment, how: Start) -> tuple[Started, Sequence[Change]]:
    """Write the last good settings into `.env` and start them; what changed. Raises as `Start.start_or_restore`.

    A setting that had no value stays empty if a newer catalog would choose one.
    """
    rows = changes(deployment)
    if rows:
        before = {row.name: row.good for row in rows}
        chosen: Mapping[str, str] = {}
        with suppress(DeployError):
            chosen = plan_of(Deployment(deployment.directory, text=deployment.text_with(before))).values
        deployment.with_values(before, empty=[name for name, value in before.items() if chosen.get(name) and not value])
    restored = Deployment.existing(deployment.directory)
    forget_upgrade(restored)
    for row in rows:
        how.reporter.note(f"{row.name}: {row.now or '(empty)'} -> {row.good or '(empty)'}")
    return how.start_or_restore(restored, plan_of(restored)), rows


def _recorded(started: Started, command: str, changed: Sequence[Change]) -> Started:
    """The same, with a line in the journal if the engine was started: it says which settings are new."""
    if started.changed:
        what = [f"{row.name}: {row.good or '(empty)'} -> {row.now or '(empty)'}" for row in changed]
        took = f"an answer after {started.seconds:.0f} s"
        failed = [started.failure.message] if started.failure else []
        record(started.deployment, "ready", command, "; ".join([took, *what, *failed]))
    return started


def _safe_changes(deployment: Deployment, plan: Plan, problem: EngineNotReady) -> dict[str, str]:
    """The settings that fix the failure; empty if the plan with them would be refused."""
    wanted = fix_changes(problem.fix, plan)
    if not wanted:
        return {}
    try:
        then = make_plan(Choice(edited={**deployment.values, **wanted}), deployment)
    except DeployError:
        return {}
    return {} if then.errors else wanted


def _about_fix(safe: Mapping[str, str], *, asked: bool) -> str:
    """What `--fix` would have done, or why it did nothing."""
    if safe:
        written = " ".join(f"{name}={value}" for name, value in safe.items())
        return f"; `dflash-deploy up --fix` writes {written} and tries once more"
    return "; --fix knows no safe change for it, and .env is as it was" if asked else ""


def _once_more(deployment: Deployment, problem: EngineNotReady, safe: Mapping[str, str], how: Start) -> Started:
    """Write the changes, report them, and try once more; a second failure is reported and not fixed again."""
    how.reporter.note(deployment.redact(f"failed: {problem.message}"))
    deployment, lines = apply_fix(deployment, safe)
    for line in lines:
        how.reporter.note(line)
    fixed = Fixed(problem.failure, safe, deployment.last_env_file)
    changes_of_fix = changes(deployment)
    try:
        started = how.start_and_check(deployment, plan_of(deployment))
        return replace(_recorded(started, "up --fix", changes_of_fix), fixed=fixed)
    except EngineNotReady as again:
        failed = how.restored_after(deployment, again)
        failed.hint += f"; --fix has changed {', '.join(safe)}: .env.last is the file before"
        failed.fixed = fixed
        raise failed from None
