"""Several engines, their router, and the published door, as the processes of one native deployment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dflash_deploy.deployment.router_files import write_workers
from dflash_deploy.errors import DeployError, PortTaken
from dflash_deploy.host import listener_on
from dflash_deploy.plan.replicas import LOOPBACK, engine_port, member_of
from dflash_deploy.runtime.native import NativeRuntime
from dflash_deploy.runtime.native_door import NativeDoor
from dflash_deploy.runtime.native_router import NativeRouter
from dflash_deploy.runtime.protocol import EngineState, LogPage, Narrate
from dflash_deploy.runtime.supervised import DOOR, ROUTER, RUN_FILE
from dflash_deploy.serve.settings import Settings

if TYPE_CHECKING:
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.plan import Plan


def has_several(deployment: Deployment) -> bool:
    """Whether several engines of a deployment run, or ran and were not stopped."""
    return any(deployment.state.glob(f"replicas/*/{RUN_FILE}")) or any(
        (deployment.state / beside / RUN_FILE).exists() for beside in (ROUTER, DOOR)
    )


class NativeSeveral:
    """The whole of a deployment with several engines. `start` starts what is around the engines, and no engine."""

    name = "native"

    def __init__(self, deployment: Deployment, plan: Plan) -> None:
        self._deployment = deployment
        self._plan = plan
        self.router = NativeRouter(deployment, plan)
        self.door = NativeDoor(deployment, plan)
        # the engine of settings with one engine may still run
        self._single = NativeRuntime(deployment, plan)

    def preflight(self) -> None:
        """Raise EngineMissing if the engine, the router or Caddy is missing; PortTaken for a private port."""
        self._single.preflight()
        if self._plan.settings.several_engines:
            self.router.preflight()
            self.door.preflight()
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
        had = self.router.state().phase == "running"
        started = self.router.start(narrate)
        try:
            return self.door.start(narrate) or started
        except DeployError:
            if not had:
                self.router.down()
            raise

    def halt(self) -> None:
        """Stop all engines, and keep their logs."""
        self._single.halt()
        for _, member in self._members():
            member.halt()

    def down(self) -> bool:
        """Stop the door, the router and all engines; return whether anything ran."""
        write_workers(self._deployment, ())
        ran = [self.door.down(), self.router.down(), self._single.down()]
        return any([*ran, *(member.down() for _, member in self._members())])

    def state(self) -> EngineState:
        """Return `running` if the door, the router and at least one engine run; `address` is the door's."""
        door, router = self.door.state(), self.router.state()
        states = [member.state() for _, member in self._members()]
        alive = sum(state.phase == "running" for state in states)
        if alive and router.phase == door.phase == "running":
            identity = f"{alive} engines, router {router.identity}, door {door.identity}"
            return EngineState("running", identity=identity, address=door.address)
        if alive or any(state.phase != "absent" for state in (door, router, *states)):
            identity, unasked = f"{alive} engines", door.unasked or router.unasked
            published = door.phase == "running"
            return EngineState("exited", identity=identity, address=door.address, unasked=unasked, published=published)
        return self._single.state()

    def memory(self) -> int | None:
        """Return the bytes of memory of all engines together; `None` if none runs."""
        sizes = [size for _, member in self._members() if (size := member.memory()) is not None]
        return sum(sizes) if sizes else None

    def next_line(self) -> str:
        """Return the beginning of all logs."""
        return ""

    def read_log(self, cursor: str = "") -> LogPage:
        """Return the lines of all engines, of the router and of the door, with the name of the process before each."""
        after = dict(part.split("=", 1) for part in cursor.split("|") if part)
        lines: list[str] = []
        readers = {f"engine {number}": member.read_log for number, member in self._members()}
        for name, read in {**readers, "router": self.router.read_log, "door": self.door.read_log}.items():
            page = read(after.get(name, ""))
            after[name] = page.cursor
            lines += (f"{name} | {line}" for line in page.lines)
        return LogPage(tuple(lines), "|".join(f"{name}={place}" for name, place in after.items()))

    def is_current(self) -> bool:
        """Return whether the router and the door run."""
        return self.router.state().phase == self.door.state().phase == "running"

    @property
    def private_url(self) -> str:
        """The door's address."""
        return f"http://{self.door.address}"

    def _members(self) -> Iterator[tuple[int, NativeRuntime]]:
        """The engines of the plan, and those that were started with earlier settings."""
        found = {int(place.name) for place in self._deployment.state.glob("replicas/*") if place.name.isdecimal()}
        planned = range(1, self._plan.settings.replicas + 1) if self._plan.settings.several_engines else ()
        for number in sorted({*found, *planned}):
            plan = member_of(self._plan, number) if number in planned else self._plan
            yield number, NativeRuntime(self._deployment.replica(number), plan)
