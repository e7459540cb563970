"""Starting an engine: its progress is reported, it is checked, and the last good settings return if it fails."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dflash_deploy.checks import QUICK, CheckReport, deployed_endpoint, run_checks
from dflash_deploy.deployment import Deployment
from dflash_deploy.deployment.last_good import changes, last_good, remember_good
from dflash_deploy.errors import EngineAsked, EngineNotReady, SmokeTestFailed
from dflash_deploy.operations.at_door import QUICK_AT_DOOR, checks_at_door
from dflash_deploy.operations.reporter import Reporter, start_shown
from dflash_deploy.operations.several import SeveralStart
from dflash_deploy.plan import Plan
from dflash_deploy.planning import plan_of
from dflash_deploy.runtime import runtime_for
from dflash_deploy.runtime.select import stop_several
from dflash_deploy.startup import Ready, endpoint_of, restore_last_good, start_worker
from dflash_deploy.startup.bring_up import bring_up
from dflash_deploy.startup.progress import remember_seconds
from dflash_deploy.startup.published import published_of, whole_url


@dataclass(frozen=True)
class Started:
    """An engine that answers, and the result of the quick checks of `test`."""

    deployment: Deployment
    plan: Plan
    ready: Ready
    checks: CheckReport

    @property
    def failure(self) -> SmokeTestFailed | None:
        """The first check that failed, as an error; `None` if all passed. The engine keeps running either way."""
        if not self.checks.failed:
            return None
        first = self.checks.failed[0]
        return SmokeTestFailed(
            f"the engine answers, but `{first.name}` failed: {' '.join(first.got.split())}",
            hint=f"{first.hint or first.asked}; `dflash-deploy test` runs all checks",
        )

    @property
    def passed(self) -> tuple[str, ...]:
        """The names of the checks that passed."""
        return tuple(check.name for check in self.checks.checks if check.status == "passed")


@dataclass(frozen=True)
class Start:
    """How an engine is started. `patience` is in seconds without a sign of progress."""

    patience: float
    reporter: Reporter

    def and_check(self, deployment: Deployment, plan: Plan) -> Started:
        """Start the engine, or find it running, and check it; remember the settings if all its checks pass.

        Raises PreflightRefused, SettingsRefused and EngineNotReady.
        """
        if plan.settings.several_engines:
            return self.several(deployment, plan)
        stop_several(deployment, plan)
        with start_shown(self.reporter, deployment.redact) as show:
            ready = bring_up(deployment, plan, runtime_for(deployment, plan), patience=self.patience, show=show)
        if ready.changed:
            remember_seconds(deployment, ready.phases)
        with endpoint_of(deployment, plan) as endpoint:
            checks = run_checks(deployed_endpoint(endpoint, plan), QUICK)
        started = Started(deployment, plan, ready, checks)
        if started.failure is None:
            # DNS and the authority decide about a certificate, not these settings
            remember_good(deployment)
        return self._published(started)

    def several(self, deployment: Deployment, plan: Plan, *, force: bool = False, only: int | None = None) -> Started:
        """Start or restart several engines, one at a time. Raises as `SeveralStart.run`."""
        start = SeveralStart(deployment, plan, self.patience, self.reporter)
        ready = start.run(force=force, only=only)
        return self._published(Started(deployment, plan, ready, start.checks))

    def _published(self, started: Started) -> Started:
        """The same with the checks through the door under a domain, and with its URL."""
        deployment, plan = started.deployment, started.plan
        if published_of(deployment, plan) is None:
            return started
        self.reporter.note(f"checking {whole_url(deployment, plan)}")
        at_door = checks_at_door(deployment, plan, QUICK_AT_DOOR, lambda check: None)
        ready = replace(started.ready, endpoint=whole_url(deployment, plan))
        return replace(started, ready=ready, checks=CheckReport((*started.checks.checks, *at_door)))

    def or_go_back(self, deployment: Deployment, plan: Plan) -> Started:
        """The same. Raises RolledBack in place of EngineNotReady if the last good settings run again."""
        try:
            return self.and_check(deployment, plan)
        except EngineNotReady as problem:
            raise self.gone_back(deployment, problem) from None

    def as_worker(self, deployment: Deployment, plan: Plan) -> bool:
        """Start an engine that computes for rank 0; whether it had to be started. Raises what `and_check` raises."""
        with start_shown(self.reporter, deployment.redact) as show:
            return start_worker(deployment, plan, runtime_for(deployment, plan), show=show)

    def gone_back(self, deployment: Deployment, problem: EngineNotReady) -> EngineNotReady:
        """The failure to report, after the last good settings were started again if there are any.

        Several engines have gone back already, except to settings with one engine: those are started here. One of
        several machines cannot go back without the others.
        """
        settings, good = plan_of(deployment).settings, last_good(deployment)
        # one rank with other settings does not join the others
        if isinstance(problem, EngineAsked) or settings.several_machines or good is None or not changes(deployment):
            return problem
        if settings.several_engines:
            single = plan_of(good)
            if single.settings.several_engines:
                return problem
            stop_several(good, single)
        with start_shown(self.reporter, deployment.redact) as show:
            return restore_last_good(deployment, problem, plan_of, runtime_for, patience=self.patience, show=show)
