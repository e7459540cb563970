"""Change several engines one at a time, so that the others keep answering.

For each engine: drop it from the router's list, wait until its requests have ended, restart it, prove it with a
generation and the quick checks, add it again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from dflash_deploy.client.answers import EndpointError
from dflash_deploy.deployment.compose import member_plan, render
from dflash_deploy.deployment.front import seen_workers, write_workers, written_workers
from dflash_deploy.errors import EngineNotReady, NotPossible
from dflash_deploy.plan.result import Choice
from dflash_deploy.planning import make_plan, plan_of
from dflash_deploy.runtime.select import several_runtime
from dflash_deploy.startup.engine import endpoint_of
from dflash_deploy.startup.members import Member, chosen_member

if TYPE_CHECKING:
    from dflash_deploy.client.endpoint import Endpoint
    from dflash_deploy.deployment.directory import Deployment
    from dflash_deploy.plan.result import Plan
    from dflash_deploy.runtime.protocol import EngineState
    from dflash_deploy.serve.router.files import RoutedEngine


ROUTER_REACTS = 30.0
"""Seconds for the router to take over a changed list; it looks twice a second."""

POLL = 0.25
QUIET = 2
"""Readings in a row without a request in flight after which an engine is drained: one may be on its way to it."""

METRICS_TIMEOUT = 5.0

Note = Callable[[str], None]
Prove = Callable[[Member], None]
"""Starts an engine and proves it. Raises EngineNotReady."""


class Routes:
    """The engines that the router of a deployment sends requests to."""

    def __init__(self, deployment: Deployment, router: Callable[[], EngineState]) -> None:
        """`router` says how the router's process is."""
        self._deployment = deployment
        self._router = router

    def only(self, workers: Iterable[RoutedEngine]) -> None:
        """Send requests to these engines and no others. Raises EngineNotReady if the router does not take them over."""
        wanted = tuple(sorted(workers, key=lambda worker: (len(worker.id), worker.id)))
        written = time.time()
        write_workers(self._deployment, wanted)
        self._wait_for({worker.url for worker in wanted}, since=written)

    def drop(self, member: Member) -> None:
        """Send no further requests to an engine."""
        self.only(worker for worker in written_workers(self._deployment) if worker.id != member.worker.id)

    def add(self, member: Member) -> None:
        """Send requests to an engine too."""
        others = (worker for worker in written_workers(self._deployment) if worker.id != member.worker.id)
        self.only((*others, member.worker))
        self._wait_until_used(member.worker.url)

    def has(self, member: Member) -> bool:
        """Whether an engine gets requests."""
        return member.worker in written_workers(self._deployment)

    def others(self, member: Member) -> bool:
        """Whether another engine gets requests."""
        return any(worker.id != member.worker.id for worker in written_workers(self._deployment))

    def _wait_until_used(self, url: str) -> None:
        """Wait until the router finds an engine healthy: no request goes there before, also if it is the only one.

        After ROUTER_REACTS it continues: the engine has been proven without the router.
        """
        deadline = time.monotonic() + ROUTER_REACTS
        while time.monotonic() < deadline:
            said = seen_workers(self._deployment)
            if said is not None and any(worker.url == url and worker.healthy for worker in said[1]):
                return
            time.sleep(POLL)

    def _wait_for(self, urls: set[str], *, since: float) -> None:
        deadline = time.monotonic() + ROUTER_REACTS
        while True:
            said = seen_workers(self._deployment)
            if said is not None and said[0] >= since and {worker.url for worker in said[1]} == urls:
                return
            if self._router().phase in {"exited", "restarting"}:
                raise EngineNotReady(
                    "the router has ended", hint="read why in the lines of `router` in `dflash-deploy logs`"
                )
            if time.monotonic() > deadline:
                raise EngineNotReady(
                    f"the router did not take over its list of engines within {ROUTER_REACTS:.0f} s",
                    hint="read why in the lines of `router` in `dflash-deploy logs`",
                )
            time.sleep(POLL)


def drain(member: Member, seconds: float) -> int:
    """Wait until an engine has no request in flight, at most `seconds`; return how many it still has.

    An engine that does not answer has none that could end.
    """
    with endpoint_of(member.deployment, member.plan, timeout=METRICS_TIMEOUT) as endpoint:
        return drained(endpoint, seconds)


def drained(endpoint: Endpoint, seconds: float) -> int:
    """Wait until the engine of an endpoint has no request in flight. Returns as `drain`."""
    deadline, quiet, left = time.monotonic() + seconds, 0, 0
    while quiet < QUIET:
        try:
            left = sum(used.in_flight for used in endpoint.key_usage())
        except EndpointError:
            return 0
        quiet = quiet + 1 if left == 0 else 0
        if time.monotonic() > deadline:
            break
        time.sleep(POLL)
    return left


def roll(members: Sequence[Member], routes: Routes, prove: Prove, *, drain_seconds: float, note: Note) -> None:
    """Restart these engines one at a time. Raises EngineNotReady of the first that fails: later ones keep running."""
    for member in members:
        take_out(member, routes, drain_seconds=drain_seconds, note=note)
        member.runtime.halt()
        prove(member)
        routes.add(member)
        note(f"{member.name} answers")


def take_out(member: Member, routes: Routes, *, drain_seconds: float, note: Note) -> None:
    """Drop an engine from the router's list and wait for its requests."""
    if routes.has(member):
        routes.drop(member)
    if member.runtime.state().phase != "running":
        return
    note(f"{member.name}: waiting for its requests, at most {drain_seconds:.0f} s")
    left = drain(member, drain_seconds)
    if left:
        note(f"{member.name}: {left} requests still in progress are cut off")


def plan_with(deployment: Deployment, changes: Mapping[str, str]) -> Plan:
    """The plan of a deployment, or of one of its engines, with some settings changed; `.env` does not change."""
    whole = make_plan(Choice(edited={**deployment.values, **changes}), deployment)
    return whole if deployment.member is None else member_plan(whole, deployment.member)


class ComposeFile:
    """`compose.yaml` of several engines, one of which runs with other settings for a while. It is nothing for others.

    Compose creates that container again, and no other: the labels of the others stay.
    """

    def __init__(self, deployment: Deployment, plan: Plan) -> None:
        """`plan` is what `.env` says for the engine."""
        self._number = deployment.member if plan.runtime == "compose" else None
        self._whole = replace(deployment, member=None)
        self._own = plan.values
        # read now: it is needed again whatever happens to .env
        self._all = None if self._number is None else plan_of(self._whole)

    def write(self, plan: Plan) -> None:
        """Write it for an engine that runs with `plan` next."""
        if self._number is None or self._all is None:
            return
        changes = {name: value for name, value in plan.values.items() if value != self._own.get(name, "")}
        other = make_plan(Choice(edited={**self._whole.values, **changes}), self._whole) if changes else self._all
        render(self._whole, self._all, {self._number: other})


@contextmanager
def set_apart(deployment: Deployment, note: Note) -> Iterator[None]:
    """Keep one of several engines out of the router's list as long as the block runs; the only engine stays as it is.

    Its requests end first, and the other engines answer. Raises NotPossible if no other engine gets requests.
    """
    if deployment.member is None:
        yield
        return
    whole = replace(deployment, member=None)
    plan = plan_of(whole)
    member = chosen_member(whole, plan, deployment.member)
    routes = Routes(whole, several_runtime(whole, plan).router.state)
    if not routes.has(member):
        yield
        return
    if not routes.others(member):
        raise NotPossible(
            f"{member.name} is the only one that gets requests", hint="start the others first: `dflash-deploy up`"
        )
    try:
        take_out(member, routes, drain_seconds=plan.settings.drain_seconds, note=note)
        yield
    finally:
        routes.add(member)
        note(f"{member.name} gets requests again")
