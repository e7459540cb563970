"""Several engines and their router as the containers of one Compose project."""

from __future__ import annotations

from dflash_deploy.deployment import Deployment
from dflash_deploy.deployment.render import render
from dflash_deploy.deployment.router_files import written_workers
from dflash_deploy.deployment.services import ROUTER
from dflash_deploy.plan import Plan
from dflash_deploy.runtime.compose import ComposeRuntime, find_container
from dflash_deploy.runtime.compose_call import STOP_GRACE, remove_project, run_compose
from dflash_deploy.runtime.docker_api import docker_client
from dflash_deploy.runtime.protocol import Narrate
from dflash_deploy.runtime.several import Several


class ComposeSeveral(Several):
    """The whole of a Compose project with several engines. Only the router is published."""

    name = "compose"

    def __init__(self, deployment: Deployment, plan: Plan) -> None:
        super().__init__(deployment, plan)
        self._router = ComposeRuntime(deployment, plan, ROUTER)

    @property
    def router(self) -> ComposeRuntime:
        """The router."""
        return self._router

    @property
    def private_url(self) -> str:
        """The router's address in the private network."""
        return self._router.private_url

    def preflight(self) -> None:
        """Raise EngineMissing if Docker or its Compose plugin does not respond."""
        self._router.preflight()

    def start(self, narrate: Narrate) -> bool:
        """Write compose.yaml and start the router; Compose removes the services that are no longer in the file."""
        render(self._deployment, self._plan)
        before = self._router.state()
        recreate = () if before.connected else ("--force-recreate",)
        run_compose(self._deployment, "up", "--detach", "--remove-orphans", *recreate, ROUTER, narrate=narrate)
        return before.identity != self._router.state().identity

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
