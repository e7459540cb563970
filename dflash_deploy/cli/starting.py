"""How the verbs start an engine: how long they wait, who sees it, what is checked, and what runs where it fails."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash_deploy.cli.planned import plan_of

if TYPE_CHECKING:
    from dflash_deploy.checks import CheckReport
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.errors import EngineNotReady, SmokeTestFailed
    from dflash_deploy.plan import Plan
    from dflash_deploy.startup import Ready, ShowProgress


@dataclass(frozen=True)
class Started:
    """An engine that answers, and what the quick checks of `test` say of it."""

    ready: Ready
    checks: CheckReport

    @property
    def failure(self) -> SmokeTestFailed | None:
        """What is wrong with it. It goes on running: a person decides what becomes of it."""
        from dflash_deploy.errors import SmokeTestFailed

        if not self.checks.failed:
            return None
        first = self.checks.failed[0]
        said = f"the engine answers, and is not right: {first.name}: {' '.join(first.got.split())}"
        return SmokeTestFailed(said, hint=f"{first.hint or first.asked}; `dflash-deploy test` looks at the rest")

    @property
    def said(self) -> str:
        """The checks that passed, for people."""
        return ", ".join(check.name for check in self.checks.checks if check.status == "passed")


@dataclass(frozen=True)
class Start:
    """`patience` is in seconds without a sign of progress; `json_stream` has the progress printed for programs."""

    patience: float
    json_stream: bool = False

    def and_check(self, deployment: Deployment, plan: Plan) -> Started:
        """Start it and check it, one that ran already too; if all is right it is remembered. Raises EngineNotReady."""
        from dflash_deploy.checks import QUICK, deployed_endpoint, run_checks
        from dflash_deploy.deployment.last_good import remember_good
        from dflash_deploy.runtime import runtime_for
        from dflash_deploy.startup import bring_up, endpoint_of
        from dflash_deploy.startup.progress import remember_seconds

        with self.display(deployment) as show:
            ready = bring_up(deployment, plan, runtime_for(deployment, plan), patience=self.patience, show=show)
        if ready.changed:
            remember_seconds(deployment, ready.phases)
        with endpoint_of(deployment, plan) as endpoint:
            started = Started(ready, run_checks(deployed_endpoint(endpoint, plan), QUICK))
        if started.failure is None:
            remember_good(deployment)
        return started

    def or_go_back(self, deployment: Deployment, plan: Plan) -> Started:
        """Start it and check it. Raises EngineNotReady, or RolledBack where the settings before run again."""
        from dflash_deploy.errors import EngineNotReady

        try:
            return self.and_check(deployment, plan)
        except EngineNotReady as problem:
            raise self.gone_back(deployment, problem) from None

    def join(self, deployment: Deployment, plan: Plan) -> bool:
        """Start an engine that computes for rank 0; tells whether anything had to be done. Raises EngineNotReady."""
        from dflash_deploy.runtime import runtime_for
        from dflash_deploy.startup import start_worker

        with self.display(deployment) as show:
            return start_worker(deployment, plan, runtime_for(deployment, plan), show=show)

    def gone_back(self, deployment: Deployment, problem: EngineNotReady) -> EngineNotReady:
        """The failure, after the settings that answered last were started again where there are some."""
        from dflash_deploy.runtime import runtime_for
        from dflash_deploy.startup import restore_last_good

        with self.display(deployment) as show:
            return restore_last_good(deployment, problem, plan_of, runtime_for, patience=self.patience, show=show)

    def display(self, deployment: Deployment) -> AbstractContextManager[ShowProgress]:
        """What shows the progress for as long as the block runs."""
        from dflash_deploy.cli.display import boot_display

        return boot_display(deployment.redact, json_stream=self.json_stream)
