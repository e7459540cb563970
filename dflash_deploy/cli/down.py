"""`down`: stop the deployment."""

from __future__ import annotations

from dflash_deploy.cli.planned import plan_to_stop
from dflash_deploy.cli.report import HERE, Directory, Json, Report, note, verb


@verb
def down(directory: Directory = HERE, as_json: Json = False) -> Report:
    """Stop and remove the engine. Weights, settings and caches stay."""
    from dflash_deploy.deployment import Deployment, hold
    from dflash_deploy.runtime import runtime_for

    deployment = Deployment.existing(directory, check=False)
    runtime = runtime_for(deployment, plan_to_stop(deployment))
    with hold(deployment, "down"):
        note("stopping the engine")
        stopped = runtime.down()
    said = "stopped; weights and settings stay" if stopped else "nothing was running"
    return Report({"stopped": stopped, "runtime": runtime.name}, (said,))
