"""The engines of a fleet: one of a host started, or the ranks of one engine over all hosts, together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from dflash_deploy.errors import HostUnprepared
from dflash_deploy.fleet import scripts
from dflash_deploy.fleet.again import ask_again
from dflash_deploy.fleet.each import HostOutcome, failure_of_all
from dflash_deploy.fleet.fabric import Fabric, find_fabric, judge_fabric, judge_hosts, questions_to_peers
from dflash_deploy.fleet.file import FleetHost
from dflash_deploy.fleet.prepare import RemoteFacts, read_facts
from dflash_deploy.fleet.remote import BUSY, RemoteDocument, RemoteProgress, call, error_of
from dflash_deploy.fleet.session import Input, Session
from dflash_deploy.operations.fleet_hosts import OpenFleet
from dflash_deploy.operations.reporter import FETCHES

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
    stdin: Callable[[], Input] | None = None,
) -> RemoteDocument:
    """Run a command on a host, report its phases, and wait up to `patience` seconds for another one that runs there.

    `stdin` makes the input of one attempt. Raises the error of the command, and what `remote.call` raises.
    """
    host, told = session.host, _Told(opened, session.host)
    waits_until = time.monotonic() + patience
    while True:
        document = call(
            session, opened.environment, *command.split(), "--dir", host.directory, *options, "--json-stream",
            on_progress=told.tell, stdin=stdin() if stdin else None,
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
