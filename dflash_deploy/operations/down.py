"""`down`: stop the engine of a deployment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.journal import record
from dflash_deploy.deployment.lock import command_lock
from dflash_deploy.document import Documented
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.plan.result import RuntimeName
from dflash_deploy.planning import plan_to_stop
from dflash_deploy.runtime.select import runtime_for


@dataclass(frozen=True)
class Stopped(Documented):
    """What `down` did."""

    stopped: bool
    """Whether an engine was stopped; false if none was running."""
    runtime: RuntimeName
    """What ran the engine: containers (`compose`) or a process on this machine (`native`)."""


def stop(directory: Path, *, reporter: Reporter = SILENT) -> Stopped:
    """Stop and remove the engine; weights, settings and caches stay. Raises NoDeployment, EngineNotReady."""
    deployment = Deployment.started(directory)
    runtime = runtime_for(deployment, plan_to_stop(deployment))
    with command_lock(deployment, "down"):
        reporter.note("stopping the engine")
        done = Stopped(runtime.down(), runtime.name)
        if done.stopped:
            record(deployment, "stopped", "down", "the engine")
        return done
