"""`down`: stop the engine of a deployment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.deployment import Deployment, command_lock
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.planning import plan_to_stop
from dflash_deploy.runtime import runtime_for


@dataclass(frozen=True)
class Stopped:
    """`stopped` is false if no engine was running."""

    stopped: bool
    runtime: str


def stop(directory: Path, *, reporter: Reporter = SILENT) -> Stopped:
    """Stop and remove the engine; weights, settings and caches stay. Raises NoDeployment, EngineNotReady."""
    deployment = Deployment.existing(directory, check=False)
    runtime = runtime_for(deployment, plan_to_stop(deployment))
    with command_lock(deployment, "down"):
        reporter.note("stopping the engine")
        return Stopped(runtime.down(), runtime.name)
