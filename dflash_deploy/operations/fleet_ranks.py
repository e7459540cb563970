"""The ranks of one engine over all hosts: stopped together, and started together."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from dflash_deploy.errors import EngineNotReady, HostUnfit, HostUnreachable
from dflash_deploy.fleet import scripts
from dflash_deploy.fleet.each import HostOutcome
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
    outcomes = dict(opened.on_each(lambda one: _stop(opened, one), opened.fleet.hosts))
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


def _stop(opened: OpenFleet, session: Session) -> RemoteDocument:
    """Stop a rank, and a start that still runs there: it would wait for ranks that are gone."""
    ends = time.monotonic() + ENDS
    while True:
        document = stop_engine(opened, session)
        error = error_of(session.host, document)
        if error is None:
            return document
        if BUSY not in error.message or time.monotonic() > ends:
            raise error
        session.require(scripts.interrupt(session.host.directory))
        time.sleep(BUSY_PAUSE)


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
        opened.on_each(lambda one: one.require(scripts.interrupt(leader.directory)), (leader,))
        raise problem

    outcomes = dict(opened.on_each(work, opened.fleet.hosts))
    if lost:
        outcomes[leader.name] = HostOutcome(leader, outcomes[leader.name].seconds, NOT_STARTED)
    return outcomes


def _loss_of(
    opened: OpenFleet, session: Session, addresses: Mapping[str, str], ended: threading.Event
) -> EngineNotReady | HostUnfit | None:
    """Check a worker until the leader's start has ended; return why the worker is lost, `None` if it is not."""
    silent = 0
    while not ended.wait(EVERY):
        try:
            found = look_at(opened, session, addresses)
        except HostUnreachable:
            # the ranks need the link between them, and not the one to this machine
            continue
        if found.engine is None or found.engine.phase != "running":
            return EngineNotReady(
                f"{session.host.name}: its rank ended while the leader started",
                hint=f"dflash-deploy fleet logs --host {session.host.name}",
            )
        # one lost connection does not mean a cut cable
        silent = silent + 1 if not all(found.peers.values()) else 0
        if silent > 1:
            return HostUnfit(
                f"{session.host.name}: another host does not answer over the link while the leader starts",
                hint="check the cable between the hosts, and run the same command again",
            )
    return None


def look_at(opened: OpenFleet, session: Session, addresses: Mapping[str, str]) -> RemoteFacts:
    """Return the facts of a host with the state of its rank, and which other hosts answer it over the link."""
    own = addresses[session.host.name]
    peers = (word for name, at in addresses.items() if name != session.host.name for word in ("--peer", at))
    return read_facts(session, opened.environment, "--dir", session.host.directory, "--source", own, *peers)
