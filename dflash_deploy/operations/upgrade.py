"""`upgrade` and `models use`: newer settings are tried beside those of `.env`, and kept or taken back.

The settings that the program chose change, the user's own stay. `.env` has the old or the new ones at any moment, and
`.dflash/upgrade.json` says which step comes next: after a kill the same command continues.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

from dflash_deploy.bench.figures import at_concurrency
from dflash_deploy.bench.sweep import Sweep, run_sweep
from dflash_deploy.bench.verdict import COSTS
from dflash_deploy.bench.workload import Limits, choose
from dflash_deploy.catalog.models import entry_text
from dflash_deploy.client.endpoint import START_IT, served_names
from dflash_deploy.deployment.directory import Deployment, restored_since
from dflash_deploy.deployment.files import FULL, LOCK_FILE, PUBLIC, not_written, write_if_changed
from dflash_deploy.deployment.journal import record
from dflash_deploy.deployment.lock import locked
from dflash_deploy.deployment.upgrading import (
    differences,
    give_up_room,
    planned_settings,
    remember_upgrade,
    reserve_room,
    settle_upgrade,
    unfinished_upgrade,
)
from dflash_deploy.errors import (
    BadInput,
    BenchmarkMissed,
    DeployError,
    EngineAsked,
    NotPossible,
    PreflightRefused,
    RolledBack,
    SmokeTestFailed,
)
from dflash_deploy.intake.documents import UpgradeState
from dflash_deploy.intake.files import read_text
from dflash_deploy.operations.bench import speculation_of_plan
from dflash_deploy.operations.pull import check_hub
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.operations.test import test
from dflash_deploy.operations.up import Start, put_back, with_weights
from dflash_deploy.operations.upgrade_plan import PAIR, Newer, Upgraded, UpgradedSetting, Wish, proposed_upgrade
from dflash_deploy.operations.work import MEASURING, engine_work
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.planning import plan_of, plan_to_stop
from dflash_deploy.runtime.select import runtime_for
from dflash_deploy.startup import PATIENCE
from dflash_deploy.startup.published import whole_endpoint

LIMITS, REQUESTS, REPEATS, MOST_AT_ONCE = Limits(max_tokens=64), 4, 7, 4
"""The load before and after: requests of this length, their number in each repeat, and the highest concurrency."""

OVERLAP = 1 / 6
"""Share of the pairs of repeats that may say otherwise: by chance 2 % of equal engines are slower (Mann-Whitney)."""

FAILURES: Mapping[int, type[DeployError]] = {
    int(one.exit_code): one for one in (RolledBack, SmokeTestFailed, BenchmarkMissed)
}
"""Why the old settings return, by the exit code, after a kill on the way."""


def slower(before: Mapping[str, Sequence[float]], after: Mapping[str, Sequence[float]]) -> str:
    """The first load that became slower by more than the repeats differ, in words; empty if none did.

    Slower is a median below 95 %, if at most OVERLAP of the pairs of an old and a new repeat say otherwise.
    """
    for load, old in before.items():
        new = after.get(load, ())
        faster = sum(one > other for one in new for other in old)
        if new and median(new) < COSTS * median(old) and faster <= OVERLAP * len(new) * len(old):
            return f"{load}: {median(new):.0f} tokens/s, before {median(old):.0f}"
    return ""


def look(directory: Path, wish: Wish | None = None) -> Upgraded:
    """What an upgrade would change, and what else is newer. Nothing changes.

    Asks the Hub, and for a pinned base image the registry. Raises NoDeployment, SettingsRefused, NotPossible, what
    `make_plan` raises, and PreflightRefused if `up` would refuse the new settings.
    """
    found, _ = proposed_upgrade(Deployment.existing(directory), wish or Wish())
    try:
        moved = check_hub(directory) or {}
    except DeployError as problem:
        return replace(found, unknown=(*found.unknown, f"newer weights: {problem.message}"))
    rows = (Newer("weights", "", repo, "dflash-deploy pull --update") for repo in moved)
    return replace(found, newer=(*found.newer, *rows))


def upgrade(
    directory: Path,
    wish: Wish | None = None,
    *,
    agree: Callable[[Upgraded], bool] = bool,
    patience: float = PATIENCE,
    reporter: Reporter = SILENT,
) -> Upgraded:
    """Move a deployment to newer settings, check and measure them, and keep them or go back.

    An upgrade that did not end continues, without a question. Otherwise `agree` gets what would change before anything
    does. `failure` of the result says why the old settings run again. Raises what `look` raises; BadInput for a wish
    while another upgrade has not ended; DownloadFailed before anything changes; EngineAsked.
    """
    with ExitStack() as stack:
        deployment = stack.enter_context(locked(directory, "upgrade"))
        state = unfinished_upgrade(deployment)
        if state is None:
            found, choice = proposed_upgrade(deployment, wish or Wish())
            if not found.changes or not agree(found):
                return found
            state = _begun(deployment, found, choice)
        else:
            if wish not in {None, Wish()}:
                hint = "`dflash-deploy upgrade` continues it, `dflash-deploy rollback` goes back"
                raise BadInput("another upgrade has not ended", hint=hint)
            reporter.note(f"an upgrade did not end: it {'goes back' if state.step == 'back' else 'continues'}")
            rows = (UpgradedSetting(name, old, new, "", "") for name, (old, new) in state.changes.items())
            found = Upgraded("planned", changes=tuple(rows))
        stack.enter_context(engine_work(deployment, "upgrade", reporter, MEASURING))
        return _Trial(deployment.directory, found, patience, reporter).run(state)


def _begun(deployment: Deployment, found: Upgraded, choice: Choice) -> UpgradeState:
    """The state from which the upgrade continues. The settings of `.env` are what it goes back to."""
    if restored_since(deployment):
        hint = "`dflash-deploy rollback` restores them in .env, then upgrade"
        raise NotPossible("the engine runs with the last working settings, not those of .env", hint=hint)
    assert found.plan is not None  # noqa: S101 - `proposed_upgrade` has made it
    reserve_room(deployment)
    deployment.next_entry.unlink(missing_ok=True)
    if choice.family is not None:
        write_if_changed(deployment.next_entry, entry_text(choice.family), mode=PUBLIC)
    lock = deployment.directory / LOCK_FILE
    state = UpgradeState(
        step="fetch",
        changes={row.name: (deployment.values.get(row.name, ""), row.new) for row in found.changes},
        planned=planned_settings(found.plan),
        lock=read_text(lock) if lock.exists() else "",
    )
    remember_upgrade(deployment, state)
    return state


@dataclass(frozen=True)
class _Trial:
    """The steps of one upgrade, from any of them on. `patience` is in seconds without a sign of progress."""

    directory: Path
    found: Upgraded
    patience: float
    reporter: Reporter

    def run(self, state: UpgradeState) -> Upgraded:
        """Go through the steps. A kill between any two leaves the state of the one that comes next."""
        after: Mapping[str, tuple[float, ...]] = {}
        problem: DeployError | None = None
        if state.step == "fetch":
            state = self._prepared(state)
        if state.step == "try":
            try:
                after = self._tried(state)
                if reason := slower(state.speed, after):
                    raise BenchmarkMissed(f"slower: {reason}", hint="`dflash-deploy tune` finds the fastest settings")
                state = self._next(state, step="keep")
            except EngineAsked:
                # a shutdown says nothing about the settings
                raise
            except (DeployError, OSError) as failed:
                give_up_room(Deployment(self.directory))
                problem = _of_the_disk(self.directory, failed)
                state = self._next(state, step="back", why=problem.message, code=int(problem.exit_code))
        done = replace(self.found, before=_medians(state.speed), after=_medians(after))
        if state.step == "back":
            return replace(done, outcome="back", failure=self._gone_back(state, problem))
        deployment = Deployment.existing(self.directory)
        settle_upgrade(deployment, state, kept=True)
        record(deployment, "ready", "upgrade", f"kept {_said(state)}")
        return replace(done, outcome="kept")

    def _next(self, state: UpgradeState, **changed: object) -> UpgradeState:
        """The state with another step, on disk before that step begins."""
        later = state.model_copy(update=changed)
        remember_upgrade(Deployment.existing(self.directory), later)
        return later

    def _prepared(self, state: UpgradeState) -> UpgradeState:
        """Fetch what the new settings need, and measure the old ones. Nothing has changed if it raises."""
        deployment = Deployment.existing(self.directory)
        text = deployment.text_with({name: new for name, (_, new) in state.changes.items()})
        try:
            plan = with_weights(Deployment(self.directory, text=text), self.reporter, ask=True)
            for error in plan.errors:
                raise PreflightRefused(error.message, hint=error.fix)
            return self._next(state, step="try", speed=self._speed_before(deployment, state))
        except (DeployError, OSError) as failed:
            settle_upgrade(deployment, state, kept=False)
            problem = _of_the_disk(self.directory, failed)
            problem.message = f"nothing changed: {problem.message}"
            raise problem from None

    def _speed_before(self, deployment: Deployment, state: UpgradeState) -> dict[str, list[float]]:
        """The speed of what runs; empty if another model comes, or if nothing runs."""
        if PAIR in state.changes:
            return {}
        try:
            return {load: list(rounds) for load, rounds in self._speed(deployment, plan_of(deployment)).items()}
        except DeployError as problem:
            self.reporter.note(deployment.redact(f"nothing to compare the speed with: {problem.message}"))
            return {}

    def _tried(self, state: UpgradeState) -> Mapping[str, tuple[float, ...]]:
        """The speed of the new settings. Raises a DeployError that says why they are not kept."""
        deployment = self._written(state, back=False)
        plan = plan_of(deployment)
        started = Start(self.patience, self.reporter).and_check(deployment, plan)
        tested = started.failure or test(self.directory, reporter=self.reporter).failure
        if tested is not None:
            raise tested
        return self._speed(deployment, plan) if state.speed else {}

    def _speed(self, deployment: Deployment, plan: Plan) -> Mapping[str, tuple[float, ...]]:
        """Tokens per second in each repeat, by load. Raises EngineNotReady and BenchmarkMissed."""
        most = min(plan.settings.max_num_seqs or MOST_AT_ONCE, MOST_AT_ONCE)
        loads = tuple(choose((), None, plan.pair))
        sweep = Sweep(loads, tuple(sorted({1, most})), LIMITS, REPEATS, REQUESTS, warmup=REQUESTS)
        with whole_endpoint(deployment, plan) as endpoint:
            served_names(endpoint, hint=START_IT, redact=deployment.redact)
            show = partial(self.reporter.measured, setting="")
            rows = run_sweep(endpoint, sweep, speculation_of_plan(plan), show=show)
        if bad := next((row for row in rows if row.failed), None):
            raise BenchmarkMissed(f"{bad.failed} requests failed: {deployment.redact(bad.problem)}", hint=START_IT)
        return {f"{row.workload} at {at_concurrency(row.concurrency)}": row.rounds for row in rows}

    def _written(self, state: UpgradeState, *, back: bool) -> Deployment:
        """The deployment with the new or the old settings in `.env`; the user's own stay."""
        deployment = Deployment.existing(self.directory)
        rows = differences(state, deployment, back=back)
        if back:
            return put_back(deployment, rows)
        return deployment.with_values({row.name: row.good for row in rows}) if rows else deployment

    def _gone_back(self, state: UpgradeState, problem: DeployError | None) -> DeployError:
        """The failure to report, after the old settings run again."""
        hint = "`dflash-deploy status --since 1d` shows what happened"
        failed = problem or FAILURES.get(state.code, RolledBack)(state.why, hint=hint)
        failed.message = f"{failed.message}; going back"
        deployment = self._written(state, back=True)
        self.reporter.note(deployment.redact(failed.message))
        then = "the old settings run again"
        try:
            again = Start(self.patience, self.reporter).and_check(deployment, plan_of(deployment))
            then = f"{then}, but {again.failure.message}" if again.failure else then
        except EngineAsked:
            raise
        except DeployError as second:
            then = f".env has the old settings, which do not start: {second.message}"
            with suppress(DeployError):
                # the new ones may still run
                runtime_for(deployment, plan_to_stop(deployment)).halt()
        settle_upgrade(deployment, state, kept=False)
        record(deployment, "rolled-back", "upgrade", f"{state.why}; {then}")
        failed.message = f"{state.why}; {then}"
        return failed


def _of_the_disk(directory: Path, problem: DeployError | OSError) -> DeployError:
    """The error to report for a disk that is full. Any other OSError is raised: it says nothing of the settings."""
    if isinstance(problem, DeployError):
        return problem
    if problem.errno not in FULL:
        raise problem
    return not_written(directory, problem)


def _medians(speeds: Mapping[str, Sequence[float]]) -> dict[str, float] | None:
    return {load: round(median(rounds), 1) for load, rounds in speeds.items()} or None


def _said(state: UpgradeState) -> str:
    return ", ".join(f"{name}: {old or '(empty)'} -> {new or '(empty)'}" for name, (old, new) in state.changes.items())
