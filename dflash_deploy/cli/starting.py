"""How the verbs start an engine: for how long they wait, who sees it, and what runs where it fails."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash_deploy.cli.planned import plan_of

if TYPE_CHECKING:
    from dflash_deploy.boot import Ready, Show
    from dflash_deploy.errors import EngineNotReady
    from dflash_deploy.plan import Plan
    from dflash_deploy.project import Deployment


@dataclass(frozen=True)
class Start:
    """`patience` is in seconds without a sign of progress; `json_stream` has the progress printed for programs."""

    patience: float
    json_stream: bool = False

    def bring_up(self, deployment: Deployment, plan: Plan) -> Ready:
        """Start it and remember its settings as good ones. Raises EngineNotReady."""
        from dflash_deploy.boot import start
        from dflash_deploy.runtime import runtime_for

        with self._display(deployment) as show:
            return start(deployment, plan, runtime_for, patience=self.patience, show=show)

    def join(self, deployment: Deployment, plan: Plan) -> bool:
        """Start an engine that computes for rank 0; tells whether anything had to be done. Raises EngineNotReady."""
        from dflash_deploy.boot import join
        from dflash_deploy.runtime import runtime_for

        with self._display(deployment) as show:
            return join(deployment, plan, runtime_for(deployment, plan), show=show)

    def gone_back(self, deployment: Deployment, problem: EngineNotReady) -> EngineNotReady:
        """The failure, after the settings that answered last were started again where there are some."""
        from dflash_deploy.boot import go_back
        from dflash_deploy.runtime import runtime_for

        with self._display(deployment) as show:
            return go_back(deployment, problem, plan_of, runtime_for, patience=self.patience, show=show)

    def bring_up_or_go_back(self, deployment: Deployment, plan: Plan) -> Ready:
        """The one, and the other where it fails. Raises EngineNotReady, or RolledBack where those settings run."""
        from dflash_deploy.errors import EngineNotReady

        try:
            return self.bring_up(deployment, plan)
        except EngineNotReady as problem:
            raise self.gone_back(deployment, problem) from None

    def _display(self, deployment: Deployment) -> AbstractContextManager[Show]:
        from dflash_deploy.cli.display import boot_display

        return boot_display(deployment.redact, json_stream=self.json_stream)
