"""One engine and the published door in front of it, as the processes of one native deployment under a domain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_deploy.runtime.interleaved import interleaved
from dflash_deploy.runtime.native import NativeRuntime
from dflash_deploy.runtime.native_door import NativeDoor
from dflash_deploy.runtime.protocol import EngineState, LogPage, Narrate
from dflash_deploy.runtime.supervised import DOOR, RUN_FILE

if TYPE_CHECKING:
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.plan import Plan


def has_door(deployment: Deployment) -> bool:
    """Whether the door of a deployment runs, or ran and was not stopped."""
    return (deployment.state / DOOR / RUN_FILE).exists()


class NativePublished:
    """An engine under a domain. It is the engine for everything that waits for it and reads its log.

    `start` starts the door too, or stops that of earlier settings with a domain.
    """

    name = "native"

    def __init__(self, deployment: Deployment, plan: Plan) -> None:
        self._deployment = deployment
        self._plan = plan
        self.door = NativeDoor(deployment, plan)
        self.engine = NativeRuntime(deployment, plan)

    def preflight(self) -> None:
        """Raise EngineMissing without the engine or Caddy; PreflightRefused for the ports of the domain."""
        self.engine.preflight()
        if self._plan.settings.published:
            self.door.preflight()

    def start(self, narrate: Narrate) -> bool:
        """Start the engine, or restart it with changed settings, then the door, which answers 503 meanwhile."""
        changed = self.engine.start(narrate)
        if self._plan.settings.published:
            return self.door.start(narrate) or changed
        return self.door.down() or changed

    def is_current(self) -> bool:
        """Return whether the engine runs with the settings of the plan."""
        return self.engine.is_current()

    @property
    def private_url(self) -> str:
        """The engine's own URL on this machine."""
        return self.engine.private_url

    def halt(self) -> None:
        """Stop the engine and keep its log; the door answers 503."""
        self.engine.halt()

    def down(self) -> bool:
        """Stop the door and the engine; return whether anything ran."""
        ran = [self.door.down(), self.engine.down()]
        return any(ran)

    def state(self) -> EngineState:
        """Return the state of the engine's process."""
        return self.engine.state()

    def memory(self) -> int | None:
        """Return the memory of the engine's processes in bytes."""
        return self.engine.memory()

    def next_line(self) -> str:
        """Return the beginning: each start has its own log."""
        return self.engine.next_line()

    def read_log(self, cursor: str = "") -> LogPage:
        """Return the engine's lines after `cursor`."""
        return self.engine.read_log(cursor)

    def read_all(self, cursor: str = "") -> LogPage:
        """Return the lines of the engine and of the door, with the name of the process before each."""
        return interleaved({"engine": self.engine.read_log, "door": self.door.read_log}, cursor)
