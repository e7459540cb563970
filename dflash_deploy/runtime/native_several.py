"""Several engines, their router, and what is published, as the processes of one native deployment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dflash_deploy.deployment.router_files import write_workers
from dflash_deploy.plan.replicas import member_of
from dflash_deploy.runtime.native import NativeRuntime
from dflash_deploy.runtime.native_router import NativeRouter
from dflash_deploy.runtime.protocol import EngineState, LogPage, Narrate
from dflash_deploy.runtime.supervised import RUN_FILE

if TYPE_CHECKING:
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.plan import Plan


def has_several(deployment: Deployment) -> bool:
    """Whether several engines of a deployment run, or ran and were not stopped."""
    return any(deployment.state.glob(f"replicas/*/{RUN_FILE}"))


class NativeSeveral:
    """The whole of a deployment with several engines. `start` starts what is around the engines, and no engine."""

    name = "native"

    def __init__(self, deployment: Deployment, plan: Plan) -> None:
        self._deployment = deployment
        self._plan = plan
        self.router = NativeRouter(deployment, plan)
        # the engine of settings with one engine may still run
        self._single = NativeRuntime(deployment, plan)

    def preflight(self) -> None:
        """Raise EngineMissing if the engine or the router is not installed."""
        self._single.preflight()
        self.router.preflight()

    def start(self, narrate: Narrate) -> bool:
        """Start the router; stop a single engine of earlier settings, and engines that are too many."""
        self._deployment.make_state()
        self._single.down()
        for number, member in self._members():
            if number > self._plan.settings.replicas:
                member.down()
        return self.router.start(narrate)

    def halt(self) -> None:
        """Stop all engines, and keep their logs."""
        self._single.halt()
        for _, member in self._members():
            member.halt()

    def down(self) -> bool:
        """Stop the router and all engines; return whether anything ran."""
        write_workers(self._deployment, ())
        ran = [self.router.down(), self._single.down(), *(member.down() for _, member in self._members())]
        return any(ran)

    def state(self) -> EngineState:
        """Return `running` if the router and at least one engine run; `address` is the router's."""
        router = self.router.state()
        states = [member.state() for _, member in self._members()]
        alive = sum(state.phase == "running" for state in states)
        if router.phase == "running" and alive:
            return EngineState("running", identity=f"{alive} engines, router {router.identity}", address=router.address)
        if alive or router.phase == "exited" or any(state.phase == "exited" for state in states):
            return EngineState("exited", identity=f"{alive} engines", unasked=router.unasked)
        return self._single.state()

    def memory(self) -> int | None:
        """Return the bytes of memory of all engines together; `None` if none runs."""
        sizes = [size for _, member in self._members() if (size := member.memory()) is not None]
        return sum(sizes) if sizes else None

    def next_line(self) -> str:
        """Return the beginning of all logs."""
        return ""

    def read_log(self, cursor: str = "") -> LogPage:
        """Return the lines of all engines and of the router, with the name of the process before each."""
        after = dict(part.split("=", 1) for part in cursor.split("|") if part)
        lines: list[str] = []
        readers = {f"engine {number}": member.read_log for number, member in self._members()}
        for name, read in {**readers, "router": self.router.read_log}.items():
            page = read(after.get(name, ""))
            after[name] = page.cursor
            lines += (f"{name} | {line}" for line in page.lines)
        return LogPage(tuple(lines), "|".join(f"{name}={place}" for name, place in after.items()))

    def is_current(self) -> bool:
        """Return whether the router runs with these settings."""
        return self.router.state().phase == "running"

    @property
    def private_url(self) -> str:
        """The router's address."""
        return f"http://{self.router.address}"

    def _members(self) -> Iterator[tuple[int, NativeRuntime]]:
        """The engines of the plan, and those that were started with earlier settings."""
        found = {int(place.name) for place in self._deployment.state.glob("replicas/*") if place.name.isdecimal()}
        planned = range(1, self._plan.settings.replicas + 1) if self._plan.settings.several_engines else ()
        for number in sorted({*found, *planned}):
            plan = member_of(self._plan, number) if number in planned else self._plan
            yield number, NativeRuntime(self._deployment.replica(number), plan)
