"""Several engines, their router, and what is published, as the processes of one native deployment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_deploy.errors import DeployError, PortTaken
from dflash_deploy.host import listener_on
from dflash_deploy.plan.replicas import LOOPBACK, engine_port
from dflash_deploy.runtime.native import NativeRuntime
from dflash_deploy.runtime.native_door import NativeDoor
from dflash_deploy.runtime.native_router import NativeRouter
from dflash_deploy.runtime.protocol import Narrate
from dflash_deploy.runtime.several import Several
from dflash_deploy.runtime.supervised import ROUTER, RUN_FILE
from dflash_deploy.serve.settings import Settings

if TYPE_CHECKING:
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.plan import Plan


def has_several(deployment: Deployment) -> bool:
    """Whether several engines of a deployment run, or ran and were not stopped."""
    return any(deployment.state.glob(f"replicas/*/{RUN_FILE}")) or (deployment.state / ROUTER / RUN_FILE).exists()


class NativeSeveral(Several):
    """The whole of a native deployment with several engines."""

    name = "native"

    def __init__(self, deployment: Deployment, plan: Plan) -> None:
        super().__init__(deployment, plan)
        self._router = NativeRouter(deployment, plan)
        self._door = NativeDoor(deployment, plan)

    @property
    def router(self) -> NativeRouter:
        """The router."""
        return self._router

    @property
    def door(self) -> NativeDoor:
        """The published door in front of it."""
        return self._door

    @property
    def private_url(self) -> str:
        """The door's address."""
        return f"http://{self._door.address}"

    def preflight(self) -> None:
        """Raise EngineMissing if the engine, the router or Caddy is missing; PortTaken for a private port."""
        self._single.preflight()
        if self._plan.settings.several_engines:
            self._router.preflight()
            self._door.preflight()
            self._check_ports()

    def _check_ports(self) -> None:
        """Raise PortTaken for the private port of an engine of the plan that another process has."""
        for number, member in self._members():
            port = engine_port(self._plan.settings.dflash_port, number)
            planned = number <= self._plan.settings.replicas
            if planned and not member.state().holds(LOOPBACK, port) and listener_on(LOOPBACK, port):
                raise PortTaken(
                    f"port {port} on {LOOPBACK} is already in use, and engine {number} needs it",
                    hint=f"set another {Settings.dflash_port} in .env: the engines have the ports after it",
                )

    def start(self, narrate: Narrate) -> bool:
        """Start the router and the door; stop a single engine of earlier settings, and engines that are too many.

        Raises PortTaken and EngineNotReady if the door cannot start; a router that was started for it is stopped.
        """
        self._deployment.make_state()
        self._single.down()
        for number, member in self._members():
            if number > self._plan.settings.replicas:
                member.down()
        had = self._router.state().phase == "running"
        started = self._router.start(narrate)
        try:
            return self._door.start(narrate) or started
        except DeployError:
            if not had:
                self._router.down()
            raise

    def halt(self, *, at_once: bool = False) -> None:
        """Stop all engines, and keep their logs. `at_once`: kill them."""
        self._single.halt(at_once=at_once)
        for _, member in self._members():
            member.halt(at_once=at_once)

    def next_line(self) -> str:
        """Return the beginning of all logs: each start has its own."""
        return ""

    def _stop_all(self) -> bool:
        ran = [self._door.down(), self._router.down(), self._single.down()]
        return any([*ran, *(member.down() for _, member in self._members())])

    def _runtime(self, deployment: Deployment, plan: Plan) -> NativeRuntime:
        return NativeRuntime(deployment, plan)

    def _numbers(self) -> set[int]:
        return {int(place.name) for place in self._deployment.state.glob("replicas/*") if place.name.isdecimal()}
