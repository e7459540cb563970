"""Several processes of one deployment behind the protocol of one: the common part of both runtimes.

The processes are one engine and the published door in front of it, or several engines, their router and their door.
Their logs are one, with the name of its process before each line.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from dflash_deploy.deployment.front import write_workers
from dflash_deploy.plan.replicas import member_of
from dflash_deploy.runtime.protocol import EngineState, FrontProcess, LogPage, Narrate, PublishedFront, ReadLog, Runtime

if TYPE_CHECKING:
    from dflash_deploy.deployment.directory import Deployment
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

    def is_current(self) -> bool:
        """Return whether the engine runs with the settings of the plan."""
        return self.engine.is_current()

    @property
    def private_url(self) -> str:
        """The engine's own URL on this machine."""
        return self.engine.private_url

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


class Several(ABC):
    """The whole of a deployment with several engines. `start` starts what is around the engines, and no engine."""

    name: str

    def __init__(self, deployment: Deployment, plan: Plan) -> None:
        self._deployment = deployment
        self._plan = plan
        # the engine of settings with one engine may still run
        self._single = self._runtime(deployment, plan)

    @property
    @abstractmethod
    def router(self) -> FrontProcess:
        """The router."""

    @property
    @abstractmethod
    def door(self) -> FrontProcess:
        """The published door in front of it."""

    @property
    @abstractmethod
    def private_url(self) -> str:
        """The door's address."""

    @abstractmethod
    def preflight(self) -> None:
        """Raise EngineMissing if the engine, the router or the door cannot run here."""

    @abstractmethod
    def start(self, narrate: Narrate) -> bool:
        """Start the router and the door; stop a single engine of earlier settings, and engines that are too many."""

    @abstractmethod
    def halt(self) -> None:
        """Stop all engines, and keep their logs."""

    @abstractmethod
    def _stop_all(self) -> bool:
        """Stop the door, the router and all engines; return whether anything ran."""

    @abstractmethod
    def _runtime(self, deployment: Deployment, plan: Plan) -> Runtime:
        """The runtime of one engine, or of the only one."""

    @abstractmethod
    def _numbers(self) -> set[int]:
        """The numbers of the engines that were started with any settings."""

    def down(self) -> bool:
        """Stop the door, the router and all engines; return whether anything ran."""
        write_workers(self._deployment, ())
        return self._stop_all()

    def state(self) -> EngineState:
        """Return `running` if the door, the router and at least one engine run; `address` is the door's."""
        door, router = self.door.state(), self.router.state()
        states = [member.state() for _, member in self._members()]
        alive = sum(state.phase == "running" for state in states)
        if alive and router.phase == door.phase == "running":
            identity = f"{alive} engines, router {router.identity}, door {door.identity}"
            return EngineState("running", identity=identity, address=door.address)
        single = self._single.state()
        if single.alive and not alive and router.phase != "running":
            # the door may be that of its domain
            return single
        if alive or any(state.phase != "absent" for state in (door, router, *states)):
            identity = f"{alive} engines"
            asked = False if False in {door.asked, router.asked} else None
            published = door.phase == "running"
            return EngineState("exited", identity=identity, address=door.address, asked=asked, published=published)
        return single

    def memory(self) -> int | None:
        """Return the bytes of memory of all engines together; `None` if none runs."""
        sizes = [size for _, member in self._members() if (size := member.memory()) is not None]
        return sum(sizes) if sizes else None

    def read_log(self, cursor: str = "") -> LogPage:
        """Return the lines of all engines, of the router and of the door, with the name of the process before each."""
        return interleaved(self.logs(), cursor)

    def logs(self) -> Mapping[str, ReadLog]:
        """Return what reads the logs of all engines, of the router and of the door, by name."""
        engines = {f"engine {number}": member.read_log for number, member in self._members()}
        return {**engines, "router": self.router.read_log, "door": self.door.read_log}

    def next_line(self) -> str:
        """Return the cursor after all lines that are there now."""
        return self.read_log().cursor

    def is_current(self) -> bool:
        """Return whether the router and the door run."""
        return self.router.state().phase == self.door.state().phase == "running"

    def _members(self) -> Iterator[tuple[int, Runtime]]:
        """The engines of the plan, and those that were started with earlier settings."""
        planned = range(1, self._plan.settings.replicas + 1) if self._plan.settings.several_engines else ()
        for number in sorted({*self._numbers(), *planned}):
            plan = member_of(self._plan, number) if number in planned else self._plan
            yield number, self._runtime(self._deployment.replica(number), plan)
