"""The published door as a container: Caddy, in front of several engines or of one under a domain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_deploy.deployment.door_files import write_door
from dflash_deploy.deployment.service_names import DOOR
from dflash_deploy.door import refusal
from dflash_deploy.runtime.certificate import (
    CERTIFIED,
    awaited_certificate,
    check_free,
    check_root,
    ports_of,
    said_at_end,
)
from dflash_deploy.runtime.compose import ComposeRuntime
from dflash_deploy.runtime.compose_call import run_compose
from dflash_deploy.runtime.protocol import EngineState, LogPage, Narrate

if TYPE_CHECKING:
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.plan import Plan


def start_front(deployment: Deployment, plan: Plan, service: str, narrate: Narrate) -> bool:
    """Start a service in front of the engines, or create it again if it changed; return whether that was needed.

    Compose removes services that compose.yaml no longer has. Raises EngineNotReady.
    """
    container = ComposeRuntime(deployment, plan, service)
    before = container.state()
    recreate = () if before.connected else ("--force-recreate",)
    options = ("--detach", "--no-deps", "--remove-orphans", *recreate)
    run_compose(deployment, "up", *options, service, narrate=narrate)
    return before.identity != container.state().identity


class ComposeDoor:
    """The service `door` of one deployment. compose.yaml must be written before it starts."""

    def __init__(self, deployment: Deployment, plan: Plan) -> None:
        self._deployment = deployment
        self._plan = plan
        self._container = ComposeRuntime(deployment, plan, DOOR)

    @property
    def private_url(self) -> str:
        """Its address in the network of the containers."""
        return self._container.private_url

    def preflight(self) -> None:
        """Raise FileMissing without the root certificate of an own authority; PortTaken for a port of the domain."""
        check_root(self._deployment, self._plan.settings)
        self._check_ports()

    def start(self, narrate: Narrate) -> bool:
        """Write its files and start it; restart one that the authority refused a certificate.

        Returns whether anything had to be done. Raises PortTaken while the earlier one still runs, and EngineNotReady.
        """
        self._check_ports()
        write_door(self._deployment, self._plan.settings)
        before = self._container.state()
        refused = self._plan.settings.published and before.phase == "running" and bool(refusal(self._since_start()))
        changed = start_front(self._deployment, self._plan, DOOR, narrate)
        if refused and not changed:
            narrate("no certificate yet: starting the door again, so that it asks for one now")
            run_compose(self._deployment, "restart", DOOR, narrate=narrate)
        return changed or refused

    def uncertified(self, seconds: float = CERTIFIED) -> str:
        """Wait for a certificate that clients accept; return why there is none after `seconds`, empty if there is.

        It ends early if the authority refuses or cannot be reached, with Caddy's words, and if Caddy ends.
        """
        begun = self._container.begun
        return awaited_certificate(
            self._deployment, self._plan.settings, self._ended, self.read_log, seconds, cursor=begun
        )

    def down(self) -> bool:
        """Return whether it runs: the engine's runtime removes it with the whole project."""
        return self.state().alive

    def state(self) -> EngineState:
        """Return the state of its container."""
        return self._container.state()

    def read_log(self, cursor: str = "") -> LogPage:
        """Return its lines after `cursor`."""
        return self._container.read_log(cursor)

    def _since_start(self) -> tuple[str, ...]:
        """The lines of its last start."""
        return self._container.read_log(self._container.begun).lines

    def _ended(self) -> str:
        """What Caddy said when it ended; empty while it runs."""
        return "" if self.state().phase == "running" else said_at_end(self.read_log().lines)

    def _check_ports(self) -> None:
        """Raise PortTaken for a port of the domain that another process has."""
        wanted = ports_of(self._plan.settings)
        held = self._container.ports if wanted else frozenset()
        for field, port in wanted:
            check_free(field, port, held)
