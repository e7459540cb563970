"""`fleet up` and `fleet restart`: hosts prepared, their settings carried to them, their engines started and proven."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from dflash_deploy.deployment import locked
from dflash_deploy.deployment.owed_start import settle_start
from dflash_deploy.errors import DeployError, EngineNotReady
from dflash_deploy.fleet.carrying import MovedWeights
from dflash_deploy.fleet.each import HostOutcome
from dflash_deploy.fleet.file import FleetHost
from dflash_deploy.fleet.prepare import RemoteFacts, examine, install, read_facts
from dflash_deploy.fleet.remote import RemoteDocument
from dflash_deploy.fleet.session import Session
from dflash_deploy.fleet.shape import Place, env_text, own_settings, shape_settings
from dflash_deploy.intake import read_text
from dflash_deploy.operations.fleet_carrying import BroughtWeights, move_weights
from dflash_deploy.operations.fleet_engines import NOT_STARTED, link_addresses, link_of, not_started, start_engine
from dflash_deploy.operations.fleet_hosts import FleetResult, OpenFleet, open_fleet, place_here
from dflash_deploy.operations.fleet_ranks import Outcomes, runs_as_started, start_ranks
from dflash_deploy.operations.patience import PATIENCE
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.planning import plan_of
from dflash_deploy.weights.lockfile import LOCK_FILE


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
    moved: MovedWeights | None = None
    if opened.chosen.shape != "one-engine":
        started, moved = _start_each(opened, ready, facts, patience)
    elif not failed:
        started, moved = _start_together(opened, facts, patience)
    else:
        started = not_started(ready)
    done = opened.results({host.name: {**failed, **started}[host.name] for host in opened.hosts}, "ready")
    return replace(done, weights=moved)


def _start_each(
    opened: OpenFleet, hosts: tuple[FleetHost, ...], facts: Mapping[str, RemoteFacts], patience: float
) -> tuple[Outcomes, MovedWeights | None]:
    """Start an engine on each host that gets its settings and weights."""
    if not hosts:
        return {}, None

    def carry(session: Session) -> None:
        changes = shape_settings(opened.fleet, opened.chosen, plan_of(opened.deployment), session.host, "")
        carry_settings(opened, session, facts[session.host.name].place, changes)

    carried = opened.on_each(carry, hosts)
    brought = move_weights(opened, tuple(host for host in hosts if not carried[host.name].error), facts, patience)
    errors = {name: one.error for name, one in carried.items() if one.error} | dict(brought.failed)
    able = tuple(host for host in hosts if host.name not in errors)
    started = opened.on_each(lambda session: start_engine(opened, session, patience), able) if able else {}
    failed = {name: HostOutcome[RemoteDocument](carried[name].host, 0.0, error=one) for name, one in errors.items()}
    return {**failed, **started}, brought.moved


def _start_together(
    opened: OpenFleet, facts: Mapping[str, RemoteFacts], patience: float
) -> tuple[Outcomes, MovedWeights | None]:
    """Start one engine over all hosts, unless it runs there with these settings. Raises HostUnfit for their link."""
    fabric = link_of(opened, facts)
    master = fabric.ports[opened.fleet.leader.name].address

    def carry(session: Session) -> bool:
        host = session.host
        own = shape_settings(opened.fleet, opened.chosen, plan_of(opened.deployment), host, master)
        changed = carry_settings(opened, session, facts[host.name].place, own | fabric.settings(host))
        engine = read_facts(session, opened.environment, "--dir", host.directory).engine
        return changed or engine is None or engine.phase != "running" or not runs_as_started(session)

    carried = opened.on_each(carry)
    errors = {name: one.error for name, one in carried.items() if one.error}
    brought = BroughtWeights(None) if errors else move_weights(opened, opened.hosts, facts, patience)
    if errors := errors | dict(brought.failed):
        # no rank starts without the others
        return {
            name: HostOutcome(one.host, one.seconds, None if name in errors else NOT_STARTED, errors.get(name))
            for name, one in carried.items()
        }, brought.moved
    if any(outcome.result for outcome in carried.values()):
        return start_ranks(opened, fabric.addresses, patience), brought.moved
    started = opened.on_each(lambda session: start_engine(opened, session, patience))
    if not any(one.error for one in started.values()):
        settle_start(opened.deployment)
    return started, brought.moved


def carry_settings(opened: OpenFleet, session: Session, place: Place, changes: Mapping[str, str]) -> bool:
    """Write `.env`, and `dflash.lock` if there is one, into the deployment directory of a host.

    `changes` are the settings that follow from the shape; those of `fleet.yaml` override them. Returns whether `.env`
    changed.
    """
    host, deployment = session.host, opened.deployment
    own = {**changes, **own_settings(opened.fleet, host)}
    text = env_text(read_text(deployment.env_file), deployment.values, place_here(), place, own)
    changed = session.send(text.encode(), f"{host.directory}/.env")
    if changed:
        opened.say(host, "settings and the API key are written, mode 0600")
    lock = deployment.directory / LOCK_FILE
    if lock.exists():
        session.send(read_text(lock).encode(), f"{host.directory}/{LOCK_FILE}")
    return changed


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
        outcomes: dict[str, HostOutcome[RemoteDocument]] = {}
        failure: DeployError | None = None
        for host in opened.hosts:
            if failure is not None:
                skipped = EngineNotReady(f"{host.name}: not restarted: {failure.message}", hint=failure.hint)
                outcomes[host.name] = HostOutcome(host, 0.0, error=skipped)
                continue
            opened.say(host, "stops and starts")
            done = opened.on_each(lambda one: start_engine(opened, one, patience, "restart"), (host,))[host.name]
            outcomes[host.name], failure = done, done.error
        return opened.results(outcomes, "ready")
