"""The ranks of one engine over all hosts: stopped together, and started together."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from dflash_deploy.deployment.owed_start import settle_start
from dflash_deploy.errors import EngineNotReady, HostUnfit, HostUnreachable, PreflightRefused
from dflash_deploy.fleet import scripts
from dflash_deploy.fleet.again import ask_again
from dflash_deploy.fleet.each import HostOutcome
from dflash_deploy.fleet.fabric import questions_to_peers
from dflash_deploy.fleet.file import FleetHost
from dflash_deploy.fleet.prepare import RemoteFacts, read_facts
from dflash_deploy.fleet.remote import BUSY, RemoteDocument, error_of
from dflash_deploy.fleet.session import Session
from dflash_deploy.operations.fleet_engines import BUSY_PAUSE, NOT_STARTED, start_engine, stop_engine
from dflash_deploy.operations.fleet_hosts import OpenFleet

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
    settle_start(opened.deployment)
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
