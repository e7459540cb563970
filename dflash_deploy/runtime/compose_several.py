"""Several engines, their router, and what is published, as the containers of one Compose project."""

from __future__ import annotations

from pathlib import Path

from docker.errors import DockerException

from dflash_deploy.deployment import Deployment
from dflash_deploy.deployment.owned_files import write_owned
from dflash_deploy.deployment.render import render
from dflash_deploy.deployment.router_files import written_workers
from dflash_deploy.deployment.services import DOOR, DOOR_LABEL, REPLICA_LABEL, ROUTER, door_text
from dflash_deploy.errors import DeployError
from dflash_deploy.plan import Plan
from dflash_deploy.runtime.compose import ComposeRuntime, find_container, project_labels
from dflash_deploy.runtime.compose_call import STOP_GRACE, remove_project, run_compose
from dflash_deploy.runtime.docker_api import docker_client
from dflash_deploy.runtime.protocol import Narrate
from dflash_deploy.runtime.several import Several


def door_file(deployment: Deployment) -> Path:
    """The Caddyfile of the door, in the directory that its container mounts."""
    return deployment.state / DOOR / "Caddyfile"


def has_several(deployment: Deployment) -> bool:
    """Whether Docker has the door or an engine of several, also if none of them was ever ready.

    False if Docker does not respond, and without a call if the deployment never had several engines.
    """
    if written_workers(deployment):
        return True
    if not door_file(deployment).exists():
        return False
    try:
        labels = project_labels(docker_client(), deployment)
    except (DeployError, DockerException, OSError):
        return False
    return any({DOOR_LABEL, REPLICA_LABEL} & one.keys() for one in labels)


class ComposeSeveral(Several):
    """The whole of a Compose project with several engines. Only the door is published."""

    name = "compose"

    def __init__(self, deployment: Deployment, plan: Plan) -> None:
        super().__init__(deployment, plan)
        self._router = ComposeRuntime(deployment, plan, ROUTER)
        self._door = ComposeRuntime(deployment, plan, DOOR)

    @property
    def router(self) -> ComposeRuntime:
        """The router."""
        return self._router

    @property
    def door(self) -> ComposeRuntime:
        """The published door in front of it."""
        return self._door

    @property
    def private_url(self) -> str:
        """The door's address in the private network."""
        return self._door.private_url

    def preflight(self) -> None:
        """Raise EngineMissing if Docker or its Compose plugin does not respond."""
        self._router.preflight()

    def start(self, narrate: Narrate) -> bool:
        """Write compose.yaml, start the router and the door; Compose removes services that the file no longer has."""
        render(self._deployment, self._plan)
        write_owned(self._deployment, door_file(self._deployment), door_text(self._plan.settings))
        # the router first: its service builds the image of both
        return any([self._up(ROUTER, self._router, narrate), self._up(DOOR, self._door, narrate)])

    def _up(self, service: str, runtime: ComposeRuntime, narrate: Narrate) -> bool:
        before = runtime.state()
        recreate = () if before.connected else ("--force-recreate",)
        options = ("--detach", "--no-deps", "--remove-orphans", *recreate)
        run_compose(self._deployment, "up", *options, service, narrate=narrate)
        return before.identity != runtime.state().identity

    def halt(self) -> None:
        """Stop all containers, and keep their logs."""
        run_compose(self._deployment, "stop", "--timeout", str(STOP_GRACE))

    def _stop_all(self) -> bool:
        there = find_container(docker_client(), self._deployment) is not None
        remove_project(self._deployment)
        return there

    def _runtime(self, deployment: Deployment, plan: Plan) -> ComposeRuntime:
        return ComposeRuntime(deployment, plan)

    def _numbers(self) -> set[int]:
        return {int(worker.id) for worker in written_workers(self._deployment) if worker.id.isdecimal()}
