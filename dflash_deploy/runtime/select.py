"""Select the runtime of a deployment."""

from __future__ import annotations

from dflash_deploy.deployment import Deployment
from dflash_deploy.plan import Plan
from dflash_deploy.runtime.protocol import Runtime


def runtime_for(deployment: Deployment, plan: Plan) -> Runtime:
    """Return the runtime in the deployment's plan."""
    if plan.runtime == "native":
        from dflash_deploy.runtime.native import NativeRuntime  # noqa: PLC0415 - one of the two is needed

        return NativeRuntime(deployment, plan)
    from dflash_deploy.runtime.compose import ComposeRuntime  # noqa: PLC0415 - the Docker client takes 0.2 s

    return ComposeRuntime(deployment, plan)
