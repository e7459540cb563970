"""Replicas of a fleet: an engine on each host, started together, and changed one host after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dflash_deploy.deployment.router_files import make_router_keys
from dflash_deploy.errors import DeployError, EngineNotReady
from dflash_deploy.fleet.again import ask_again
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
from dflash_deploy.operations.fleet_front import failed_routes, find_front, leave, present_front
from dflash_deploy.operations.fleet_hosts import OpenFleet
from dflash_deploy.operations.fleet_ranks import Outcomes, mark_as_started, mark_as_unknown, runs_as_started
from dflash_deploy.operations.fleet_settings import carry_router_keys, carry_settings
from dflash_deploy.planning import plan_of


def start_each(
    opened: OpenFleet, hosts: tuple[FleetHost, ...], facts: Mapping[str, RemoteFacts], patience: float
) -> tuple[Outcomes, MovedWeights | None]:
    """Start an engine on each host that gets its settings and weights, and let the router send to those that answer.

    Raises HostUnfit, FleetRefused if the router cannot reach the hosts; if one is missing, the error of the leader.
    """
    if not hosts:
        return {}, None
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
    brought = move_weights(opened, tuple(host for host in hosts if not carried[host.name].error), facts, patience)
    errors = {name: one.error for name, one in carried.items() if one.error} | dict(brought.failed)
    able = tuple(host for host in hosts if host.name not in errors)
    restarting = {name for name, one in carried.items() if one.result}
    started = _started(opened, able, restarting, front, patience) if able else {}
    failed = {name: HostOutcome[RemoteDocument](carried[name].host, 0.0, error=one) for name, one in errors.items()}
    return {**failed, **started}, brought.moved


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
