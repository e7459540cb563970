"""`fleet up` and `fleet restart`: hosts prepared, their settings carried to them, their engines started and proven."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from dflash_deploy.deployment.directory import FLEET_FILE
from dflash_deploy.deployment.files import LOCK_FILE
from dflash_deploy.deployment.lock import locked
from dflash_deploy.errors import DeployError, HostUnreachable
from dflash_deploy.features.fleet.change import Outcomes, one_after_the_other, runs_as_started, start_each, start_ranks
from dflash_deploy.features.fleet.engines import (
    NOT_STARTED,
    call_patiently,
    link_addresses,
    link_of,
    not_started,
    start_engine,
)
from dflash_deploy.features.fleet.file import check_front, env_text, own_settings, shape_settings
from dflash_deploy.features.fleet.prepare import RemoteFacts, examine, install, read_facts
from dflash_deploy.features.fleet.settings import (
    NAME_COLUMN,
    FleetResult,
    HostOutcome,
    OpenFleet,
    carry_settings,
    open_fleet,
    place_here,
)
from dflash_deploy.features.fleet.ssh import Session
from dflash_deploy.intake.files import read_text
from dflash_deploy.operations.pull import hub_of
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.planning import plan_of
from dflash_deploy.startup import PATIENCE
from dflash_deploy.weights.lock import read_lock, write_lock
from dflash_deploy.weights.pull import lock_for, network_is_refused, requested_models


def fleet_up(
    directory: Path, names: tuple[str, ...] = (), *, patience: float = PATIENCE, reporter: Reporter = SILENT
) -> FleetResult:
    """Prepare the hosts, carry settings and lock to them, start their engines, and wait until each has answered.

    What is done already is left as it is, so an interrupted call continues. Raises as `open_fleet`, and DirectoryBusy;
    failures of hosts are in the result.
    """
    with locked(directory, "fleet up"):
        opened = open_fleet(directory, names, reporter)
        opened.require_all()
        if opened.front:
            plan = plan_of(opened.deployment)
            check_front(opened.fleet, plan.settings.replicas, native=plan.runtime == "native")
        prepared = opened.on_each(lambda session: _prepare(opened, session))
        return _start(opened, prepared, patience)


def _prepare(opened: OpenFleet, session: Session) -> RemoteFacts:
    """Check a host and install what it lacks; return its facts."""
    host = session.host
    opened.say(host, "checks the host")
    # settings that are not valid are found before anything is installed
    own_settings(opened.fleet, host)
    found = examine(session)
    install(session, opened.wheel, found, lambda text: opened.say(host, text))
    return read_facts(session, opened.environment)


def _start(opened: OpenFleet, prepared: Mapping[str, HostOutcome[RemoteFacts]], patience: float) -> FleetResult:
    """Start the engines of the hosts that are prepared; one engine only if all are."""
    failed: Outcomes = {
        name: HostOutcome(one.host, one.seconds, error=one.error) for name, one in prepared.items() if one.error
    }
    facts = {name: one.result for name, one in prepared.items() if one.result is not None}
    ready = tuple(host for host in opened.hosts if host.name in facts)
    if opened.front and opened.fleet.leader.name in failed:
        # without it no request reaches the others
        started = not_started(ready)
        _hint_at_another_leader(opened, failed)
    elif opened.chosen.shape != "one-engine":
        _lock_weights(opened)
        started = start_each(opened, ready, facts, patience)
    elif not failed:
        _lock_weights(opened)
        started = _start_together(opened, facts, patience)
    else:
        started = not_started(ready)
    return opened.results({host.name: {**failed, **started}[host.name] for host in opened.hosts}, "ready")


def _lock_weights(opened: OpenFleet) -> None:
    """Write dflash.lock on this machine, if it is missing: the hosts get it, and fetch the same commits.

    If the Hub cannot be asked here, each host asks it for the commits of what it lacks.
    """
    deployment, here = opened.deployment, place_here()
    file = deployment.directory / LOCK_FILE
    before = read_lock(file)
    if network_is_refused():
        return
    try:
        own = own_settings(opened.fleet, opened.fleet.leader)
        text = env_text(read_text(deployment.env_file), deployment.values, here, here, own)
        leaders = replace(deployment, text=text)
        if wanted := requested_models(leaders, plan_of(leaders)):
            write_lock(file, lock_for(wanted, before, hub_of(leaders)))
    except DeployError as problem:
        said = deployment.redact(problem.message)
        opened.reporter.note(f"{'weights':{NAME_COLUMN}} each host asks the Hub for the commits: {said}")


def _hint_at_another_leader(opened: OpenFleet, failed: Outcomes) -> None:
    """A lost host may be the one with router and door: say how another one takes its place."""
    leader = opened.fleet.leader
    problem = failed[leader.name].error
    others = [host.name for host in opened.fleet.hosts if host.name not in failed]
    if isinstance(problem, HostUnreachable) and others:
        # two hosts cannot have the role
        instead = f" and not for {leader.name}" if leader.role else ""
        place = f"`role: leader` for {others[0]}{instead} in {FLEET_FILE}, and `fleet up` again"
        problem.hint = f"{problem.hint}; or let another host answer: {place}"


def _start_together(opened: OpenFleet, facts: Mapping[str, RemoteFacts], patience: float) -> Outcomes:
    """Start one engine over all hosts, unless it runs there with these settings. Raises HostUnfit for their link."""
    fabric = link_of(opened, facts)
    master = fabric.ports[opened.fleet.leader.name].address

    def carry(session: Session) -> bool:
        host = session.host
        own = shape_settings(opened.fleet, opened.chosen, plan_of(opened.deployment), host, master)
        carry_settings(opened, session, facts[host.name].place, own | fabric.settings(host))
        engine = read_facts(session, opened.environment, "--dir", host.directory).engine
        starts = engine is None or engine.phase != "running" or not runs_as_started(opened, session)
        if starts:
            # a rank that has started waits only some minutes for one that still downloads
            call_patiently(opened, session, "fleet fetch", patience=patience)
        return starts

    carried = opened.on_each(carry)
    if any(one.error for one in carried.values()):
        # no rank starts without the others
        return {
            name: HostOutcome(one.host, one.seconds, None if one.error else NOT_STARTED, one.error)
            for name, one in carried.items()
        }
    if any(outcome.result for outcome in carried.values()):
        return start_ranks(opened, fabric.addresses, patience)
    return opened.on_each(lambda session: start_engine(opened, session, patience))


def fleet_restart(
    directory: Path, names: tuple[str, ...] = (), *, patience: float = PATIENCE, reporter: Reporter = SILENT
) -> FleetResult:
    """Stop the engines and start them. Of replicas one host restarts after the other, and no further after a failure.

    Raises as `fleet_up`.
    """
    with locked(directory, "fleet restart"):
        opened = open_fleet(directory, names, reporter)
        opened.require_all()
        if opened.chosen.shape == "one-engine":
            return opened.results(start_ranks(opened, link_addresses(opened), patience), "ready")
        outcomes = one_after_the_other(opened, opened.hosts, patience, "restart")
        return opened.results({host.name: outcomes[host.name] for host in opened.hosts}, "ready")
