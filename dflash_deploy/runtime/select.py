"""The runtime that a deployment is set to."""

from __future__ import annotations

from dflash_deploy.deployment import Deployment
from dflash_deploy.plan import Plan
from dflash_deploy.runtime.protocol import Runtime


def runtime_for(deployment: Deployment, plan: Plan) -> Runtime:
    """The runtime of a deployment, as its plan says."""
    if plan.runtime == "native":
        from dflash_deploy.runtime.native import NativeRuntime

        return NativeRuntime(deployment, plan)
    from dflash_deploy.runtime.compose import ComposeRuntime

    return ComposeRuntime(deployment, plan)
