"""Several engines, their router, and what is published, as the containers of one Compose project."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_deploy.deployment import Deployment
from dflash_deploy.deployment.owned_files import write_owned
from dflash_deploy.deployment.render import render
from dflash_deploy.deployment.router_files import written_workers
from dflash_deploy.deployment.services import DOOR, INNER_PORT, ROUTER, engine_service
from dflash_deploy.door import Door, Plain, caddyfile
from dflash_deploy.plan import Plan
from dflash_deploy.runtime.compose import ComposeRuntime, find_container
from dflash_deploy.runtime.compose_call import STOP_GRACE, remove_project, run_compose
from dflash_deploy.runtime.docker_api import docker_client
from dflash_deploy.runtime.protocol import Narrate
from dflash_deploy.runtime.several import Several
from dflash_deploy.serve.gateway.body_limit import MIB

if TYPE_CHECKING:
    from dflash_deploy.serve.settings import Settings

STORAGE = "/tmp/caddy"  # noqa: S108 - in the container, whose /tmp is its own
"""Where Caddy keeps certificates; plain HTTP has none."""


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
        write_owned(
            self._deployment, self._deployment.state / DOOR / "Caddyfile", caddyfile(door_of(self._plan.settings))
        )
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


def door_of(settings: Settings) -> Door:
    """What the door publishes of its container, and where it sends it."""
    return Door(
        Plain("0.0.0.0", INNER_PORT),  # noqa: S104 - in the container; several.yaml has the address on the host
        tuple(f"{engine_service(number)}:{INNER_PORT}" for number in range(1, settings.replicas + 1)),
        STORAGE,
        settings.max_body_mib * MIB,
        preflights=settings.allows_origins,
        router=f"{ROUTER}:{INNER_PORT}",
    )
