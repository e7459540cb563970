"""The engines of a fleet, and the router in front of its hosts.

Each host starts an engine of its own, or all start the ranks of one engine together. The router runs on one host, and
sends requests to a list of engines.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dflash_deploy.errors import DeployError, EngineNotReady, HostUnfit, HostUnprepared
from dflash_deploy.features.fleet import scripts
from dflash_deploy.features.fleet.file import FleetHost, Front, front_of, kept_addresses, routed_hosts
from dflash_deploy.features.fleet.prepare import (
    Fabric,
    RemoteFacts,
    find_fabric,
    judge_fabric,
    judge_hosts,
    questions_to_peers,
    read_facts,
)
from dflash_deploy.features.fleet.settings import HostOutcome, HostResult, OpenFleet, ask_again, failure_of_all, on_each
from dflash_deploy.features.fleet.ssh import BUSY, NO_ROUTER, RemoteDocument, RemoteProgress, Session, call, error_of
from dflash_deploy.operations.reporter import FETCHES
from dflash_deploy.planning import plan_of

HEARTBEAT = 15.0
"""Seconds after which a phase that continues is reported again."""

BUSY_PAUSE = 2.0
"""Seconds between two tries while another command runs on a host."""

STOPS = 300.0
"""Seconds for a `down` on a host: requests in progress get 45 s."""

NOT_STARTED = RemoteDocument.model_validate({"schema": 1, "status": "ok", "data": {"state": "not started"}})
ABSENT = RemoteDocument.model_validate({"schema": 1, "status": "ok", "data": {"state": "absent"}})


def not_started(hosts: tuple[FleetHost, ...]) -> Mapping[str, HostOutcome[RemoteDocument]]:
    """The outcomes of hosts that are ready, but another one failed, so that one engine over all cannot start."""
    return {host.name: HostOutcome(host, 0.0, NOT_STARTED) for host in hosts}


def link_of(opened: OpenFleet, facts: Mapping[str, RemoteFacts]) -> Fabric:
    """Return the link that joins all hosts, checked at both ends. Raises HostUnfit, HostUnreachable."""
    fabric = find_fabric(opened.fleet, {name: found.links for name, found in facts.items()})
    judge_fabric(opened.fleet, fabric)
    addresses = fabric.addresses

    def ask(session: Session) -> Mapping[str, bool]:
        questions = questions_to_peers(addresses, session.host.name)
        return ask_again(
            lambda: read_facts(session, opened.environment, *questions).peers, enough=lambda peers: all(peers.values())
        )

    asked = opened.on_each(ask, opened.fleet.hosts)
    for outcome in asked.values():
        if outcome.error is not None:
            raise outcome.error
    judge_hosts(
        {name: found.drivers for name, found in facts.items()},
        {name: outcome.result or {} for name, outcome in asked.items()},
    )
    leader = opened.fleet.leader
    port = fabric.ports[leader.name]
    opened.say(leader, f"leads at {port.address} ({port.interface}{f', {port.rdma}' if port.rdma else ''})")
    return fabric


def link_addresses(opened: OpenFleet) -> Mapping[str, str]:
    """The address of each host on the link between them. Raises the error of a host, and HostUnfit without a link."""
    outcomes = opened.on_each(lambda one: read_facts(one, opened.environment), opened.fleet.hosts)
    if (failure := failure_of_all(outcomes)) is not None:
        raise failure
    links = {name: one.result.links for name, one in outcomes.items() if one.result is not None}
    return find_fabric(opened.fleet, links).addresses


def absent(session: Session, problem: HostUnprepared) -> RemoteDocument:
    """ABSENT if a host has no deployment. Else raises `problem`: another release may have started an engine there."""
    if ask_again(lambda: session.require(scripts.deployed(session.host.directory))) != "no\n":
        raise problem
    return ABSENT


def stop_engine(opened: OpenFleet, session: Session) -> RemoteDocument:
    """Stop the engine of a host. One that was never prepared has none.

    Raises HostUnprepared if it has a deployment, and not this release of dflash-deploy.
    """
    try:
        document = opened.call(session, "down", "--json", seconds=STOPS)
    except HostUnprepared as problem:
        return absent(session, problem)
    return ABSENT if isinstance(error_of(session.host, document), HostUnprepared) else document


def start_engine(opened: OpenFleet, session: Session, patience: float, command: str = "up") -> RemoteDocument:
    """Start the engine of a host and report its phases; wait for another command that runs there."""
    document = call_patiently(opened, session, command, "--patience", f"{patience:g}", patience=patience)
    opened.say(session.host, _outcome(document))
    return document


def call_patiently(
    opened: OpenFleet,
    session: Session,
    command: str,
    *options: str,
    patience: float,
    stdin: bytes | None = None,
) -> RemoteDocument:
    """Run a command on a host, report its phases, and wait up to `patience` seconds for another one that runs there.

    Raises the error of the command, and what `ssh.call` raises.
    """
    host, told = session.host, _Told(opened, session.host)
    waits_until = time.monotonic() + patience
    while True:
        document = call(
            session, opened.environment, *command.split(), "--dir", host.directory, *options, "--json-stream",
            on_progress=told.tell, stdin=stdin,
        )  # fmt: skip
        error = error_of(host, document)
        if error is None:
            return document
        if BUSY not in error.message or time.monotonic() > waits_until:
            raise error
        told.say("waits for another command that runs there")
        time.sleep(BUSY_PAUSE)


def _outcome(document: RemoteDocument) -> str:
    data = document.data
    if data.endpoint is None:
        return "runs, and computes for the leader"
    speed = f", {data.tokens_per_second:.0f} tokens/s" if data.tokens_per_second else ""
    return f"answers at {data.endpoint}{speed}"


class _Told:
    """Reports a phase when it begins, and again every HEARTBEAT."""

    def __init__(self, opened: OpenFleet, host: FleetHost) -> None:
        self._opened = opened
        self._host = host
        self._phase = ""
        self._at = 0.0

    def tell(self, progress: RemoteProgress) -> None:
        """One line of progress of the host."""
        after = f": {progress.last_line}" if progress.phase == FETCHES else ""
        self.say(progress.phase, f"{progress.elapsed:4.0f} s  ", after)

    def say(self, phase: str, before: str = "", after: str = "") -> None:
        """Report a phase, unless it was reported a moment ago."""
        now = time.monotonic()
        if phase != self._phase or now - self._at > HEARTBEAT:
            self._phase, self._at = phase, now
            self._opened.say(self._host, f"{before}{phase}{after}")


PATIENCE = 300.0
"""Seconds for which a command waits for another one on the router's host, such as its `up`."""

NO_ENGINES: Mapping[str, str] = {}


def find_front(opened: OpenFleet, facts: Mapping[str, RemoteFacts], *, present: bool = False) -> Front:
    """Return the router's place and the engines behind it. `facts` are those of the hosts that are prepared.

    Other hosts of the fleet are asked. If one does not answer, and if `present` is set, the addresses that the router
    has stay what they are: the link that joins the hosts now may be another one. Raises HostUnfit if no link joins the
    hosts, FleetRefused, and the error of the leader if it is needed then.
    """
    others = tuple(host for host in opened.fleet.hosts if host.name not in facts and host not in opened.hosts)
    asked = on_each(opened.fleet, others, lambda one: read_facts(one, opened.environment)) if others else {}
    known = {**facts, **{name: one.result for name, one in asked.items() if one.result is not None}}
    hosts = tuple(host for host in opened.fleet.hosts if host.name in known)
    joined = opened.fleet.model_copy(update={"hosts": hosts})
    addresses = find_fabric(joined, {name: one.links for name, one in known.items()}).addresses if hosts else {}
    missing = len(hosts) < len(opened.fleet.hosts)
    listed = _listed(opened, known) if missing or present else ()
    own = {name: [link.address for link in one.links] for name, one in known.items()}
    kept = kept_addresses(addresses, own, listed)
    return front_of(opened.fleet, kept, plan_of(opened.deployment).settings.dflash_port).with_unknown(listed)


def _listed(opened: OpenFleet, known: Mapping[str, RemoteFacts]) -> tuple[str, ...]:
    """The addresses of ROUTER_ENGINES on the leader; none before its first start. Raises its error."""
    leader = opened.fleet.leader

    def ask(session: Session) -> RemoteFacts:
        return ask_again(lambda: read_facts(session, opened.environment, "--dir", leader.directory))

    found = on_each(opened.fleet, (leader,), ask)[leader.name]
    if found.result is not None:
        return tuple(found.result.router_engines)
    # it answers, but not for its deployment directory: there is none yet
    if isinstance(found.error, HostUnprepared) or (isinstance(found.error, HostUnfit) and leader.name in known):
        return ()
    raise found.error or HostUnfit(f"{leader.name}: no answer", hint="run the same command again")


def present_front(opened: OpenFleet) -> Front:
    """The router's place and the engines behind it, from what the hosts say now. Raises the error of a host."""
    asked = opened.on_each(lambda one: ask_again(lambda: read_facts(one, opened.environment)), opened.hosts)
    if (failure := failure_of_all(asked)) is not None:
        raise failure
    facts = {name: one.result for name, one in asked.items() if one.result is not None}
    return find_front(opened, facts, present=True)


def route(opened: OpenFleet, *without: str, expected: Mapping[str, str] = NO_ENGINES) -> Mapping[str, DeployError]:
    """Send requests to all engines that answer, but to none of `without` (HOST:PORT), whose requests end first.

    `expected` has the addresses of engines that must get requests, by host. Returns the errors by host: that of the
    router's host, or those of hosts whose engine gets no requests.
    """
    leader = opened.fleet.leader
    words = tuple(word for address in without for word in ("--without", address))

    def call(session: Session) -> RemoteDocument:
        return call_patiently(opened, session, "fleet route", *words, patience=PATIENCE)

    outcome = on_each(opened.fleet, (leader,), call)[leader.name]
    if outcome.error is not None or outcome.result is None:
        return {} if outcome.error is None else {leader.name: outcome.error}
    done = outcome.result.data
    missing = {name: address for name, address in expected.items() if address not in done.engines}
    for address, why in done.left_out.items():
        if address not in without and address not in missing.values():
            opened.say(leader, f"sends no requests to {address}: {why}")
    return {name: _unrouted(leader, name, address, done.left_out.get(address)) for name, address in missing.items()}


def _unrouted(leader: FleetHost, name: str, address: str, why: str | None) -> EngineNotReady:
    """The error for a host whose engine answers on the host, but the router does not send to it."""
    if why is None:
        return EngineNotReady(
            f"{name}: the router on {leader.name} does not know {address}",
            hint="`dflash-deploy fleet up` without --host writes it into the settings of the router's host",
        )
    return EngineNotReady(
        f"{name}: the router on {leader.name} sends no requests to {address}: {why}",
        hint="check the link between both hosts and the firewall, then run the same command again",
    )


def leave(opened: OpenFleet, host: FleetHost, address: str) -> DeployError | None:
    """Let the router send no further requests to a host, and wait for those that it answers.

    Returns why the router did not do that; `None` also if none runs.
    """
    opened.say(host, "gets no further requests; those in progress end first")
    problem = route(opened, address).get(opened.fleet.leader.name)
    absent = isinstance(problem, EngineNotReady) and NO_ROUTER in problem.message
    return None if absent or isinstance(problem, HostUnprepared) else problem


def leave_all(opened: OpenFleet) -> None:
    """Let the router send no further requests to the hosts of the command.

    A failure is only reported: the hosts stop anyway, and the router notices itself that the engines are gone.
    """
    asked = opened.on_each(lambda one: read_facts(one, opened.environment), opened.hosts)
    try:
        facts = {name: one.result for name, one in asked.items() if one.result is not None}
        front = find_front(opened, facts, present=True)
        addresses = [front.engines[host.name] for host in opened.hosts if host.name in front.engines]
        problem = route(opened, *addresses).get(opened.fleet.leader.name) if addresses else None
    except DeployError as found:
        problem = found
    if problem is not None:
        opened.say(opened.fleet.leader, f"its router was not asked: {problem.message}")


def with_routes(opened: OpenFleet, rows: Sequence[HostResult]) -> Sequence[HostResult]:
    """The same with `routed`, for hosts whose address is known; without it if the router's host cannot be asked."""
    leader = opened.fleet.leader

    def ask(session: Session) -> RemoteFacts:
        return read_facts(session, opened.environment, "--dir", session.host.directory)

    asked = on_each(opened.fleet, opened.fleet.hosts, ask)
    facts = {name: one.result for name, one in asked.items() if one.result is not None}
    if leader.name not in facts:
        return rows
    try:
        front = find_front(opened, facts, present=True)
    except DeployError as problem:
        opened.say(leader, f"which hosts get requests is unknown: {problem.message}")
        return rows
    found, known = routed_hosts(front, facts[leader.name].routed), {leader.name, *front.engines}
    return tuple(replace(row, routed=row.name in found) if row.name in known else row for row in rows)


def failed_routes(
    opened: OpenFleet, front: Front, outcomes: Mapping[str, HostOutcome[RemoteDocument]]
) -> Mapping[str, DeployError]:
    """Let the router send to all engines that answer; return the errors by host, as `route`."""
    working = {name for name, one in outcomes.items() if not _failed(one)}
    leader = opened.fleet.leader.name
    if leader in outcomes and leader not in working:
        # the failure of its host is reported already
        return {}
    if not front.engines and not front.unknown:
        # no other host is known yet, so the leader runs no router
        return {}
    return route(opened, expected={name: one for name, one in front.engines.items() if name in working})


def _failed(outcome: HostOutcome[RemoteDocument]) -> bool:
    return outcome.result is None or error_of(outcome.host, outcome.result) is not None
