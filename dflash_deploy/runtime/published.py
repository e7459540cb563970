"""An engine and the published door in front of it behind the protocol of one engine, for both runtimes.

Their logs are one, with the name of its process before each line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dflash_deploy.runtime.protocol import EngineState, LogPage, Narrate, PublishedFront, ReadLog, Runtime

if TYPE_CHECKING:
    from dflash_deploy.plan.result import Plan


class EngineAndDoor:
    """An engine under a domain. It is the engine for everything that waits for it and reads its log.

    `start` starts the door too, or stops that of earlier settings with a domain.
    """

    def __init__(self, plan: Plan, engine: Runtime, door: PublishedFront) -> None:
        self._plan = plan
        self.engine = engine
        self.door = door
        self.name = engine.name

    def preflight(self) -> None:
        """Raise what engine and door raise: a program that is missing, or a port of the domain that is taken."""
        self.engine.preflight()
        if self._plan.settings.published:
            self.door.preflight()

    def start(self, narrate: Narrate) -> bool:
        """Start the engine, or restart it with changed settings, then the door, which answers 503 meanwhile."""
        changed = self.engine.start(narrate)
        if self._plan.settings.published:
            return self.door.start(narrate) or changed
        return self.door.down() or changed

    def halt(self, *, at_once: bool = False) -> None:
        """Stop the engine and keep its log; the door answers 503. `at_once`: kill it."""
        self.engine.halt(at_once=at_once)

    def down(self) -> bool:
        """Stop the door and the engine; return whether anything ran."""
        ran = [self.door.down(), self.engine.down()]
        return any(ran)

    def state(self) -> EngineState:
        """Return the state of the engine."""
        return self.engine.state()

    def memory(self) -> int | None:
        """Return the memory of the engine in bytes."""
        return self.engine.memory()

    def pids(self) -> tuple[int, ...]:
        """Return the processes of the engine."""
        return self.engine.pids()

    def next_line(self) -> str:
        """Return the cursor for the log of an engine that is started now."""
        return self.engine.next_line()

    def read_log(self, cursor: str = "") -> LogPage:
        """Return the engine's lines after `cursor`."""
        return self.engine.read_log(cursor)

    def logs(self) -> Mapping[str, ReadLog]:
        """Return what reads the logs of the engine and of the door, by name."""
        return {"engine": self.engine.read_log, "door": self.door.read_log}


def interleaved(readers: Mapping[str, ReadLog], cursor: str = "", *, tail: int | None = None) -> LogPage:
    """Return the lines of all logs after `cursor`, which holds a cursor for each; of each only the last `tail`.

    An empty name is not written before the lines.
    """
    after = dict(part.split("=", 1) for part in cursor.split("|") if part)
    lines: list[str] = []
    for name, read in readers.items():
        page = read(after.get(name, ""))
        after[name] = page.cursor
        shown = page.lines if tail is None else page.lines[-tail:] if tail else ()
        lines += (f"{name} | {line}" if name else line for line in shown)
    return LogPage(tuple(lines), "|".join(f"{name}={place}" for name, place in after.items()))
