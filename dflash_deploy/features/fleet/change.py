"""Starts and changes engines of several hosts together: the ranks of one engine, or replicas.

Ranks of one engine over all hosts are stopped together, and started together. Replicas, an engine on each host, are
started together, and changed one host after the other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace

from dflash_deploy.deployment.front import make_router_keys
from dflash_deploy.errors import DeployError, EngineNotReady, HostUnfit, HostUnreachable, PreflightRefused
from dflash_deploy.features.fleet import scripts
from dflash_deploy.features.fleet.engines import (
    BUSY_PAUSE,
    NOT_STARTED,
    failed_routes,
    find_front,
    leave,
    present_front,
    start_engine,
    stop_engine,
)
from dflash_deploy.features.fleet.file import FleetHost, Front, in_turns, shape_settings
from dflash_deploy.features.fleet.prepare import RemoteFacts, questions_to_peers, read_facts
from dflash_deploy.features.fleet.settings import HostOutcome, OpenFleet, ask_again, carry_router_keys, carry_settings
from dflash_deploy.features.fleet.ssh import BUSY, RemoteDocument, Session, error_of
from dflash_deploy.planning import plan_of

EVERY = 10.0
"""Seconds between two checks of the workers while the leader starts."""

ENDS = 120.0
"""Seconds for a start on a host to end after it was interrupted."""

Outcomes = Mapping[str, HostOutcome[RemoteDocument]]


def start_ranks(opened: OpenFleet, addresses: Mapping[str, str], patience: float) -> Outcomes:
    """Stop what runs on all hosts, start the workers, then the leader, and wait for its answer.

    A rank does not join an engine that runs, so all of them start together. If one fails, all are stopped. `addresses`
    are those of the hosts on their link.
    """
    leader, *workers = opened.fleet.ranked
    outcomes = dict(opened.on_each(lambda one: _stop_for_start(opened, one), opened.fleet.hosts))
    if _failed(outcomes):
        return _after_failure(outcomes)
    outcomes |= opened.on_each(lambda one: start_engine(opened, one, patience), tuple(workers))
    if not _failed(outcomes):
        outcomes |= {name: one for name, one in _lead(opened, leader, addresses, patience).items()
                     if name == leader.name or one.error}  # fmt: skip
    if _failed(outcomes):
        opened.on_each(lambda one: _stop(opened, one), opened.fleet.hosts)
        return _after_failure(outcomes)
    return outcomes


def _failed(outcomes: Outcomes) -> bool:
    return any(one.error for one in outcomes.values())


def _after_failure(outcomes: Outcomes) -> Outcomes:
    return {
        name: one if one.error else HostOutcome(one.host, one.seconds, NOT_STARTED) for name, one in outcomes.items()
    }


def runs_as_started(opened: OpenFleet, session: Session) -> bool:
    """Whether `.env` of a host, and the release of dflash-deploy, are those with which its engine was started.

    If a `fleet up` is interrupted after it wrote `.env`, the engines run with older settings, and `up` on each host
    would restart them: ranks one by one, and replicas all at the same time.
    """
    return session.require(scripts.compare_settings(session.host.directory, opened.environment)) == "same\n"


def mark_as_started(opened: OpenFleet, session: Session) -> None:
    """Remember the `.env` of a host and the release as those with which its engine is started."""
    session.require(scripts.mark_settings(session.host.directory, opened.environment))


def mark_as_unknown(session: Session) -> None:
    """Remember that an engine may run with any settings: a start on the host begins."""
    session.require(scripts.mark_settings(session.host.directory, ""))


def _stop_for_start(opened: OpenFleet, session: Session) -> RemoteDocument:
    document = _stop(opened, session)
    mark_as_started(opened, session)
    return document


def _stop(opened: OpenFleet, session: Session) -> RemoteDocument:
    """Stop a rank, and a start that still runs there: it would wait for ranks that are gone."""
    ends = time.monotonic() + ENDS
    while True:
        document = ask_again(lambda: stop_engine(opened, session))
        error = error_of(session.host, document)
        if error is None:
            return document
        if BUSY not in error.message or time.monotonic() > ends:
            raise error
        _interrupt(session)
        time.sleep(BUSY_PAUSE)


def _interrupt(session: Session) -> None:
    ask_again(lambda: session.require(scripts.interrupt(session.host.directory)))


def _lead(opened: OpenFleet, leader: FleetHost, addresses: Mapping[str, str], patience: float) -> Outcomes:
    """Start the leader. A worker that is lost meanwhile ends the start: the leader would wait until `patience` ends."""
    ended = threading.Event()
    lost: list[str] = []

    def work(session: Session) -> RemoteDocument:
        if session.host is leader:
            try:
                return start_engine(opened, session, patience)
            finally:
                ended.set()
        problem = _loss_of(opened, session, addresses, ended)
        if problem is None:
            return NOT_STARTED
        lost.append(session.host.name)
        opened.on_each(_interrupt, (leader,))
        raise problem

    outcomes = dict(opened.on_each(work, opened.fleet.hosts))
    if lost:
        outcomes[leader.name] = HostOutcome(leader, outcomes[leader.name].seconds, NOT_STARTED)
    return outcomes


def _loss_of(
    opened: OpenFleet, session: Session, addresses: Mapping[str, str], ended: threading.Event
) -> EngineNotReady | HostUnfit | None:
    """Check a worker until the leader's start has ended; return why the worker is lost, `None` if it is not."""
    doubts = 0
    while not ended.wait(EVERY):
        problem = _problem_of(opened, session, addresses)
        # one lost connection does not mean a cut cable
        doubts = doubts + 1 if problem is not None else 0
        if isinstance(problem, EngineNotReady) or doubts > 1:
            return problem
    return None


def _problem_of(opened: OpenFleet, session: Session, addresses: Mapping[str, str]) -> EngineNotReady | HostUnfit | None:
    """What is wrong with a worker while the leader starts; `None` if nothing is, or it cannot be reached."""
    name = session.host.name
    try:
        found = look_at(opened, session, addresses)
    except HostUnreachable:
        # the ranks need the link between them, and not the one to this machine
        return None
    except PreflightRefused as problem:
        said = problem.message.removeprefix(f"{name}: ")
        return HostUnfit(
            f"{name}: its rank cannot be checked while the leader starts, so all are stopped: {said}", hint=problem.hint
        )
    if found.engine is None or found.engine.phase != "running":
        return EngineNotReady(
            f"{name}: its rank ended while the leader started", hint=f"dflash-deploy fleet logs --host {name}"
        )
    if not all(found.peers.values()):
        return HostUnfit(
            f"{name}: another host does not answer over the link while the leader starts",
            hint="check the cable between the hosts, and run the same command again",
        )
    return None


def look_at(opened: OpenFleet, session: Session, addresses: Mapping[str, str]) -> RemoteFacts:
    """Return the facts of a host with the state of its rank, and which other hosts answer it over the link."""
    questions = questions_to_peers(addresses, session.host.name)
    return read_facts(session, opened.environment, "--dir", session.host.directory, *questions)


def start_each(
    opened: OpenFleet, hosts: tuple[FleetHost, ...], facts: Mapping[str, RemoteFacts], patience: float
) -> Outcomes:
    """Start an engine on each host that gets its settings, and let the router send to those that answer.

    Raises HostUnfit, FleetRefused if the router cannot reach the hosts; if one is missing, the error of the leader.
    """
    if not hosts:
        return {}
    front = find_front(opened, facts) if opened.front else None
    # all hosts get the same ones
    keys = make_router_keys(opened.deployment) if front is not None else None

    def carry(session: Session) -> bool:
        host = session.host
        own = shape_settings(opened.fleet, opened.chosen, plan_of(opened.deployment), host, "")
        if front is None or keys is None:
            carry_settings(opened, session, facts[host.name].place, own)
            return False
        if host.name in front.engines:
            opened.say(host, f"serves the router at {_place(front.engines[host.name], facts[host.name])}")
        carry_router_keys(session, keys)
        carry_settings(opened, session, facts[host.name].place, own, front.settings(host))
        return ask_again(lambda: restarts(opened, session))

    carried = opened.on_each(carry, hosts)
    errors = {name: one.error for name, one in carried.items() if one.error}
    able = tuple(host for host in hosts if host.name not in errors)
    restarting = {name for name, one in carried.items() if one.result}
    started = _started(opened, able, restarting, front, patience) if able else {}
    failed = {name: HostOutcome[RemoteDocument](carried[name].host, 0.0, error=one) for name, one in errors.items()}
    return {**failed, **started}


def _place(address: str, facts: RemoteFacts) -> str:
    """An address HOST:PORT with the interface that has it."""
    found = next((link.interface for link in facts.links if link.address == address.rpartition(":")[0]), "")
    return f"{address} ({found})" if found else address


def restarts(opened: OpenFleet, session: Session) -> bool:
    """Whether the engine of a host runs, and was started with other settings or by another release."""
    if runs_as_started(opened, session):
        return False
    engine = read_facts(session, opened.environment, "--dir", session.host.directory).engine
    return engine is not None and engine.phase == "running"


def _started(
    opened: OpenFleet, hosts: tuple[FleetHost, ...], restarting: set[str], front: Front | None, patience: float
) -> Outcomes:
    """Start the engines at the same time; behind a router, those that run with other settings one after the other."""
    if front is None:
        return opened.on_each(lambda session: _start(opened, session, patience), hosts)
    together, turns = in_turns(hosts, opened.fleet.leader, restarting)
    outcomes: dict[str, HostOutcome[RemoteDocument]] = {}
    if together:
        outcomes |= opened.on_each(lambda session: _start(opened, session, patience), together)
    outcomes |= one_after_the_other(opened, turns, patience, "up", front)
    return _routed(opened, front, outcomes)


def _start(opened: OpenFleet, session: Session, patience: float, command: str = "up") -> RemoteDocument:
    # an interrupted or failed start may leave an engine with older settings, or with ones that are replaced again
    ask_again(lambda: mark_as_unknown(session))
    document = start_engine(opened, session, patience, command)
    ask_again(lambda: mark_as_started(opened, session))
    return document


def one_after_the_other(
    opened: OpenFleet, hosts: tuple[FleetHost, ...], patience: float, command: str, front: Front | None = None
) -> Outcomes:
    """Run `up` or `restart` on one host after the other, and no further after a failure.

    Behind a router, each host gets no requests meanwhile: it leaves the router's list, ends its requests, starts,
    proves itself, and returns.
    """
    if opened.front and front is None and hosts:
        front = present_front(opened)
    outcomes: dict[str, HostOutcome[RemoteDocument]] = {}
    failure: DeployError | None = None

    for host in hosts:
        if failure is not None:
            skipped = EngineNotReady(f"{host.name}: not restarted: {failure.message}", hint=failure.hint)
            outcomes[host.name] = HostOutcome(host, 0.0, error=skipped)
            continue
        outcomes[host.name] = done = _one(opened, host, patience, command, front)
        failure = done.error
    return outcomes


def _one(
    opened: OpenFleet, host: FleetHost, patience: float, command: str, front: Front | None
) -> HostOutcome[RemoteDocument]:
    """Restart the engine of one host, without requests from the router meanwhile."""
    if front is not None and host is not front.host and host.name in front.engines:
        problem = leave(opened, host, front.engines[host.name])
        if problem is not None:
            return HostOutcome(host, 0.0, error=problem)
    opened.say(host, "stops and starts")
    outcomes = opened.on_each(lambda one: _start(opened, one, patience, command), (host,))
    # also after a failure: the engine may answer with its last working settings
    return (_routed(opened, front, outcomes) if front is not None else outcomes)[host.name]


def _routed(opened: OpenFleet, front: Front, outcomes: Outcomes) -> Outcomes:
    """The same after the router sends to all engines that answer. A host whose engine gets no requests has failed."""
    done = dict(outcomes)
    for name, problem in failed_routes(opened, front, outcomes).items():
        blamed = name if name in done else next(iter(done))
        done[blamed] = replace(done[blamed], result=None, error=done[blamed].error or problem)
    return done
