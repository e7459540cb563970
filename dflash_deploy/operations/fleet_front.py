"""The router in front of the hosts of a fleet: where it is, and which engines it sends requests to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dflash_deploy.errors import DeployError, EngineNotReady, HostUnprepared
from dflash_deploy.fleet.each import HostOutcome, on_each
from dflash_deploy.fleet.fabric import find_fabric
from dflash_deploy.fleet.file import FleetHost
from dflash_deploy.fleet.front import Front, front_of, routed_hosts
from dflash_deploy.fleet.prepare import RemoteFacts, read_facts
from dflash_deploy.fleet.remote import RemoteDocument, error_of
from dflash_deploy.fleet.session import Session
from dflash_deploy.operations.fleet_engines import call_patiently
from dflash_deploy.operations.fleet_hosts import HostResult, OpenFleet
from dflash_deploy.planning import plan_of

PATIENCE = 300.0
"""Seconds for which a command waits for another one on the router's host, such as its `up`."""


def find_front(opened: OpenFleet, facts: Mapping[str, RemoteFacts]) -> Front:
    """Return the router's place and the engines behind it. `facts` are those of the hosts that are prepared.

    Other hosts of the fleet are asked. The address of one that does not answer stays what it was. Raises HostUnfit if
    no link joins the hosts, FleetRefused.
    """
    others = tuple(host for host in opened.fleet.hosts if host.name not in facts and host not in opened.hosts)
    asked = on_each(opened.fleet, others, lambda one: read_facts(one, opened.environment)) if others else {}
    known = {**facts, **{name: one.result for name, one in asked.items() if one.result is not None}}
    hosts = tuple(host for host in opened.fleet.hosts if host.name in known)
    joined = opened.fleet.model_copy(update={"hosts": hosts})
    addresses = find_fabric(joined, {name: one.links for name, one in known.items()}).addresses if hosts else {}
    front = front_of(opened.fleet, addresses, plan_of(opened.deployment).settings.dflash_port)
    if len(hosts) == len(opened.fleet.hosts):
        return front
    leader = _facts_of_leader(opened)
    return front.with_unknown(() if leader is None else leader.router_engines)


def route(opened: OpenFleet, *without: str) -> DeployError | None:
    """Send requests to all engines that answer, but to none of `without` (HOST:PORT), whose requests end first.

    Returns why that failed, `None` if it did not.
    """
    leader = opened.fleet.leader
    words = tuple(word for address in without for word in ("--without", address))

    def call(session: Session) -> RemoteDocument:
        return call_patiently(opened, session, "fleet route", *words, patience=PATIENCE)

    outcome = on_each(opened.fleet, (leader,), call)[leader.name]
    if outcome.result is not None:
        for address, why in outcome.result.data.left_out.items():
            if address not in without:
                opened.say(leader, f"sends no requests to {address}: {why}")
    return outcome.error


def leave(opened: OpenFleet, host: FleetHost, address: str) -> DeployError | None:
    """Let the router send no further requests to a host, and wait for those that it answers.

    Returns why the router's host cannot be asked; `None` also if its router does not run.
    """
    opened.say(host, "gets no further requests; those in progress end first")
    problem = route(opened, address)
    return None if isinstance(problem, EngineNotReady | HostUnprepared) else problem


def leave_all(opened: OpenFleet) -> None:
    """Let the router send no further requests to the hosts of the command.

    It is only reported if the router's host cannot be asked: the router notices itself that the engines are gone.
    """
    asked = opened.on_each(lambda one: read_facts(one, opened.environment), opened.hosts)
    front = find_front(opened, {name: one.result for name, one in asked.items() if one.result is not None})
    addresses = [front.engines[host.name] for host in opened.hosts if host.name in front.engines]
    problem = route(opened, *addresses) if addresses else None
    if problem is not None:
        opened.say(opened.fleet.leader, f"its router was not asked: {problem.message}")


def routed_urls(opened: OpenFleet) -> tuple[str, ...] | None:
    """The URLs of the engines to which the router sends requests; `None` if its host cannot be asked."""
    found = _facts_of_leader(opened)
    return None if found is None else tuple(found.routed)


def _facts_of_leader(opened: OpenFleet) -> RemoteFacts | None:
    leader = opened.fleet.leader

    def ask(session: Session) -> RemoteFacts:
        return read_facts(session, opened.environment, "--dir", leader.directory)

    return on_each(opened.fleet, (leader,), ask)[leader.name].result


def with_routes(opened: OpenFleet, rows: tuple[HostResult, ...], urls: tuple[str, ...]) -> tuple[HostResult, ...]:
    """The same with `routed`. `urls` are those of the engines to which the router sends requests."""
    endpoints = {row.host.name: (row.document.data.endpoint if row.document else None) or "" for row in rows}
    found = routed_hosts(endpoints, opened.fleet.leader.name, urls)
    return tuple(replace(row, routed=row.host.name in found) for row in rows)


def failed_route(opened: OpenFleet, outcomes: Mapping[str, HostOutcome[RemoteDocument]]) -> DeployError | None:
    """Let the router send to all engines that answer; return why that failed."""
    leader = opened.fleet.leader.name
    if leader in outcomes and _failed(outcomes[leader]):
        # the failure of its host is reported already
        return None
    return route(opened)


def _failed(outcome: HostOutcome[RemoteDocument]) -> bool:
    return outcome.result is None or error_of(outcome.host, outcome.result) is not None
