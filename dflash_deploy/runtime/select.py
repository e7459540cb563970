"""Select the runtime of a deployment, also if its `.env` does not name one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_deploy.errors import DeployError
from dflash_deploy.runtime.native_process import DOOR, RUN_FILE, find_supervised
from dflash_deploy.runtime.protocol import LogsByName
from dflash_deploy.runtime.published import EngineAndDoor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dflash_deploy.deployment.directory import Deployment
    from dflash_deploy.plan.result import Plan
    from dflash_deploy.runtime.protocol import PublishedFront, ReadLog, Runtime
    from dflash_deploy.serve.settings import RuntimeName


def runtime_for(deployment: Deployment, plan: Plan) -> Runtime:
    """Return the runtime in the deployment's plan."""
    # one of the two is needed, and the Docker client takes 0.2 s
    if plan.runtime == "native":
        return _native(deployment, plan)
    from dflash_deploy.runtime.compose import ComposeRuntime  # noqa: PLC0415

    engine = ComposeRuntime(deployment, plan)
    return EngineAndDoor(plan, engine, domain_door(deployment, plan)) if plan.settings.published else engine


def _native(deployment: Deployment, plan: Plan) -> Runtime:
    """The engine of the plan, with the door of a domain or of earlier settings with one."""
    from dflash_deploy.runtime.native import NativeRuntime  # noqa: PLC0415 - one of the runtimes is needed

    engine = NativeRuntime(deployment, plan)
    # it runs, or ran and was not stopped
    has_door = (deployment.state / DOOR / RUN_FILE).exists()
    published = plan.settings.published or has_door
    return EngineAndDoor(plan, engine, domain_door(deployment, plan)) if published else engine


def door_before(deployment: Deployment, plan: Plan) -> PublishedFront | None:
    """Return the published door of a deployment; `None` if its engine is what clients reach."""
    return domain_door(deployment, plan) if plan.settings.published else None


def domain_door(deployment: Deployment, plan: Plan) -> PublishedFront:
    """Return the door of a deployment under a domain."""
    if plan.runtime == "compose":
        from dflash_deploy.runtime.compose import ComposeDoor  # noqa: PLC0415 - needed behind a door only

        return ComposeDoor(deployment, plan)
    from dflash_deploy.runtime.native import NativeDoor  # noqa: PLC0415 - needed behind a door only

    return NativeDoor(deployment, plan)


def logs_of(runtime: Runtime) -> Mapping[str, ReadLog]:
    """Return what reads the logs of the engine and of all that runs beside it, by name; the only one has none."""
    return runtime.logs() if isinstance(runtime, LogsByName) else {"": runtime.read_log}


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
