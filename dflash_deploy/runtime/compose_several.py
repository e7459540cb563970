"""Several engines, their router, and what is published, as the containers of one Compose project."""

from __future__ import annotations

from docker.errors import DockerException

from dflash_deploy.deployment import Deployment
from dflash_deploy.deployment.door_files import CADDYFILE, door_directory
from dflash_deploy.deployment.render import render
from dflash_deploy.deployment.router_files import written_workers
from dflash_deploy.deployment.service_names import ROUTER
from dflash_deploy.deployment.services import REPLICA_LABEL
from dflash_deploy.errors import DeployError
from dflash_deploy.plan import Plan
from dflash_deploy.runtime.compose import ComposeRuntime, find_container, project_labels
from dflash_deploy.runtime.compose_call import STOP_GRACE, remove_project, run_compose
from dflash_deploy.runtime.compose_door import ComposeDoor, start_front
from dflash_deploy.runtime.docker_api import docker_client
from dflash_deploy.runtime.protocol import Narrate
from dflash_deploy.runtime.several import Several


def has_several(deployment: Deployment) -> bool:
    """Whether Docker has the router or an engine of several, also if none of them was ever ready.

    False if Docker does not respond, and without a call if the deployment never had a door.
    """
    if written_workers(deployment):
        return True
    if not (door_directory(deployment) / CADDYFILE).exists():
        return False
    try:
        labels = project_labels(docker_client(), deployment)
    except (DeployError, DockerException, OSError):
        return False
    return any(REPLICA_LABEL in one or one.get("com.docker.compose.service") == ROUTER for one in labels)


class ComposeSeveral(Several):
    """The whole of a Compose project with several engines. Only the door is published."""

    name = "compose"

    def __init__(self, deployment: Deployment, plan: Plan) -> None:
        super().__init__(deployment, plan)
        self._router = ComposeRuntime(deployment, plan, ROUTER)
        self._door = ComposeDoor(deployment, plan)

    @property
    def router(self) -> ComposeRuntime:
        """The router."""
        return self._router

    @property
    def door(self) -> ComposeDoor:
        """The published door in front of it."""
        return self._door

    @property
    def private_url(self) -> str:
        """The door's address in the private network."""
        return self._door.private_url

    def preflight(self) -> None:
        """Raise EngineMissing if Docker or its Compose plugin does not respond; what the door raises for a domain."""
        self._router.preflight()
        self._door.preflight()

    def start(self, narrate: Narrate) -> bool:
        """Write compose.yaml, start the router and the door; Compose removes services that the file no longer has."""
        render(self._deployment, self._plan)
        # the router first: its service builds the image of both
        return any([start_front(self._deployment, self._plan, ROUTER, narrate), self._door.start(narrate)])

    def halt(self, *, at_once: bool = False) -> None:
        """Stop all containers, and keep their logs. `at_once`: kill them."""
        run_compose(self._deployment, "stop", "--timeout", "0" if at_once else str(STOP_GRACE))

    def _stop_all(self) -> bool:
        there = find_container(docker_client(), self._deployment) is not None
        remove_project(self._deployment)
        return there

    def _runtime(self, deployment: Deployment, plan: Plan) -> ComposeRuntime:
        return ComposeRuntime(deployment, plan)

    def _numbers(self) -> set[int]:
        return {int(worker.id) for worker in written_workers(self._deployment) if worker.id.isdecimal()}
