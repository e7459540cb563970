"""Select the runtime of a deployment, also if its `.env` does not name one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_deploy.deployment.front import DOOR
from dflash_deploy.errors import DeployError
from dflash_deploy.runtime.native_process import find_supervised

if TYPE_CHECKING:
    from dflash_deploy.deployment.directory import Deployment
    from dflash_deploy.plan.result import Plan
    from dflash_deploy.runtime.protocol import Runtime
    from dflash_deploy.serve.settings import RuntimeName


def runtime_for(deployment: Deployment, plan: Plan) -> Runtime:
    """Return the runtime in the deployment's plan."""
    # one of the two is needed, and the Docker client takes 0.2 s
    if plan.runtime == "native":
        from dflash_deploy.runtime.native import NativeRuntime  # noqa: PLC0415

        return NativeRuntime(deployment, plan)
    from dflash_deploy.runtime.compose import ComposeRuntime  # noqa: PLC0415

    return ComposeRuntime(deployment, plan)


def door_of(deployment: Deployment, plan: Plan) -> Runtime | None:
    """Return the container of the door; `None` without one."""
    if plan.runtime == "native" or not plan.settings.published:
        return None
    from dflash_deploy.runtime.compose import ComposeRuntime  # noqa: PLC0415

    return ComposeRuntime(deployment, plan, DOOR)


def runtime_seen(deployment: Deployment) -> RuntimeName:
    """Return the runtime of the engine that runs, or ran last, for a deployment whose settings do not say.

    After a power cut `.env` may be empty, and the engine still has to be found.
    """
    if find_supervised(deployment.state) is not None:
        return "native"
    docker = _container_exists(deployment)
    if docker:
        return "compose"
    ran_natively = any((deployment.state / name).exists() for name in ("run.json", "exit.json", "engine.log"))
    return "native" if ran_natively or docker is None else "compose"


def _container_exists(deployment: Deployment) -> bool | None:
    """Whether Docker has a container of this deployment; `None` if Docker does not respond."""
    from docker.errors import DockerException  # noqa: PLC0415 - the Docker client takes 0.2 s

    from dflash_deploy.runtime.compose import find_container  # noqa: PLC0415
    from dflash_deploy.runtime.docker import docker_client  # noqa: PLC0415

    try:
        return find_container(docker_client(), deployment) is not None
    except (DeployError, DockerException, OSError):
        return None
