"""Replicas of a fleet: an engine on each host, started together, and changed one host after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dflash_deploy.errors import DeployError, EngineNotReady
from dflash_deploy.fleet.carrying import MovedWeights
from dflash_deploy.fleet.each import HostOutcome
from dflash_deploy.fleet.file import FleetHost
from dflash_deploy.fleet.front import Front, in_turns
from dflash_deploy.fleet.prepare import RemoteFacts, read_facts
from dflash_deploy.fleet.remote import RemoteDocument
from dflash_deploy.fleet.session import Session
from dflash_deploy.fleet.shape import shape_settings
from dflash_deploy.operations.fleet_carrying import move_weights
from dflash_deploy.operations.fleet_engines import start_engine
from dflash_deploy.operations.fleet_front import failed_route, find_front, leave
from dflash_deploy.operations.fleet_hosts import OpenFleet
from dflash_deploy.operations.fleet_ranks import Outcomes
from dflash_deploy.operations.fleet_settings import carry_router_keys, carry_settings
from dflash_deploy.planning import plan_of


def start_each(
    opened: OpenFleet, hosts: tuple[FleetHost, ...], facts: Mapping[str, RemoteFacts], patience: float
) -> tuple[Outcomes, MovedWeights | None]:
    """Start an engine on each host that gets its settings and weights, and let the router send to those that answer.

    Raises HostUnfit, FleetRefused if the router cannot reach the hosts.
    """
    if not hosts:
        return {}, None
    front = find_front(opened, facts) if opened.front else None

    def carry(session: Session) -> bool:
        host = session.host
        own = shape_settings(opened.fleet, opened.chosen, plan_of(opened.deployment), host, "")
        if front is not None:
            carry_router_keys(opened, session)
        return carry_settings(opened, session, facts[host.name].place, own, front.settings(host) if front else {})

    carried = opened.on_each(carry, hosts)
    brought = move_weights(opened, tuple(host for host in hosts if not carried[host.name].error), facts, patience)
    errors = {name: one.error for name, one in carried.items() if one.error} | dict(brought.failed)
    able = tuple(host for host in hosts if host.name not in errors)
    changed = {name for name, one in carried.items() if one.result}
    started = _started(opened, able, changed, front, patience) if able else {}
    failed = {name: HostOutcome[RemoteDocument](carried[name].host, 0.0, error=one) for name, one in errors.items()}
    return {**failed, **started}, brought.moved


def _started(
    opened: OpenFleet, hosts: tuple[FleetHost, ...], changed: set[str], front: Front | None, patience: float
) -> Outcomes:
    """Start the engines at the same time; behind a router, those that run with other settings one after the other."""
    if front is None:
        return opened.on_each(lambda session: start_engine(opened, session, patience), hosts)
    together, turns = in_turns(hosts, opened.fleet.leader, changed, _running(opened, hosts, changed))
    outcomes: dict[str, HostOutcome[RemoteDocument]] = {}
    if together:
        outcomes |= opened.on_each(lambda session: start_engine(opened, session, patience), together)
    outcomes |= one_after_the_other(opened, turns, patience, "up", front)
    return _routed(opened, outcomes)


def _running(opened: OpenFleet, hosts: tuple[FleetHost, ...], changed: set[str]) -> set[str]:
    """The names of those hosts with changed settings whose engine runs."""
    asked = tuple(host for host in hosts if host.name in changed)
    if not asked:
        return set()
    found = opened.on_each(lambda one: read_facts(one, opened.environment, "--dir", one.host.directory), asked)
    return {name for name, one in found.items() if one.result and one.result.engine
            and one.result.engine.phase == "running"}  # fmt: skip


def one_after_the_other(
    opened: OpenFleet, hosts: tuple[FleetHost, ...], patience: float, command: str, front: Front | None = None
) -> Outcomes:
    """Run `up` or `restart` on one host after the other, and no further after a failure.

    Behind a router, each host gets no requests meanwhile: it leaves the router's list, ends its requests, starts,
    proves itself, and returns.
    """
    if opened.front and front is None and hosts:
        front = _present_front(opened)
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
    outcomes = opened.on_each(lambda one: start_engine(opened, one, patience, command), (host,))
    # also after a failure: the engine may answer with its last working settings
    return (_routed(opened, outcomes) if front is not None else outcomes)[host.name]


def _present_front(opened: OpenFleet) -> Front:
    """The router's place and the engines behind it, from what the hosts say now. Raises the error of a host."""
    asked = opened.on_each(lambda one: read_facts(one, opened.environment), opened.hosts)
    return find_front(opened, {name: one.result for name, one in asked.items() if one.result is not None})


def _routed(opened: OpenFleet, outcomes: Outcomes) -> Outcomes:
    """The same after the router sends to all engines that answer. If it cannot, its host has failed."""
    problem = failed_route(opened, outcomes)
    if problem is None:
        return outcomes
    blamed = opened.fleet.leader.name if opened.fleet.leader.name in outcomes else next(iter(outcomes))
    return {**outcomes, blamed: replace(outcomes[blamed], result=None, error=outcomes[blamed].error or problem)}
