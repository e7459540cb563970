"""`fleet up` and `fleet restart`: hosts prepared, their settings carried to them, their engines started and proven."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from dflash_deploy.deployment import locked
from dflash_deploy.errors import DeployError, EngineNotReady, NotPossible
from dflash_deploy.fleet.each import HostOutcome
from dflash_deploy.fleet.file import FleetHost
from dflash_deploy.fleet.prepare import examine, install, read_place
from dflash_deploy.fleet.remote import BUSY, RemoteDocument, RemoteProgress, call, error_of
from dflash_deploy.fleet.session import Session
from dflash_deploy.fleet.shape import Place, env_text, own_settings, shape_settings
from dflash_deploy.intake import read_text
from dflash_deploy.operations.fleet_hosts import FleetResult, OpenFleet, open_fleet, place_here
from dflash_deploy.operations.patience import PATIENCE
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.planning import plan_of
from dflash_deploy.weights.lockfile import LOCK_FILE

HEARTBEAT = 15.0
"""Seconds after which a phase that continues is reported again."""

BUSY_PAUSE = 2.0
"""Seconds between two tries while another command runs on a host."""


def fleet_up(
    directory: Path, names: tuple[str, ...] = (), *, patience: float = PATIENCE, reporter: Reporter = SILENT
) -> FleetResult:
    """Prepare the hosts, carry settings and lock to them, start their engines, and wait until each has answered.

    What is done already is left as it is, so an interrupted call continues. Raises as `open_fleet`, and DirectoryBusy;
    failures of hosts are in the result.
    """
    with locked(directory, "fleet up"):
        opened = open_fleet(directory, names, reporter)
        _refuse_one_engine(opened)
        prepared = opened.on_each(lambda session: _prepare(opened, session))
        return _start(opened, prepared, patience)


def _refuse_one_engine(opened: OpenFleet) -> None:
    if opened.chosen.shape == "one-engine":
        raise NotPossible(
            "`fleet up` does not start one engine over several hosts",
            hint="docs/tutorials/two-boxes.md has the steps on each host",
        )


def _prepare(opened: OpenFleet, session: Session) -> Place:
    """Check a host and install what it lacks; return where paths begin on it."""
    host = session.host
    opened.say(host, "checks the host")
    # settings that are not valid are found before anything is installed
    own_settings(opened.fleet, host)
    found = examine(session)
    install(session, opened.wheel, found, lambda text: opened.say(host, text))
    return read_place(session, opened.environment)


def _start(opened: OpenFleet, prepared: Mapping[str, HostOutcome[Place]], patience: float) -> FleetResult:
    """Start the engines of the hosts that are prepared."""
    failed: dict[str, HostOutcome[RemoteDocument]] = {
        name: HostOutcome(one.host, one.seconds, error=one.error) for name, one in prepared.items() if one.error
    }
    places = {name: one.result for name, one in prepared.items() if one.result is not None}
    ready = tuple(host for host in opened.hosts if host.name in places)

    def up(session: Session) -> RemoteDocument:
        carry_settings(opened, session, places[session.host.name])
        return start_engine(opened, session, patience)

    started = opened.on_each(up, ready) if ready else {}
    return opened.results({host.name: {**failed, **started}[host.name] for host in opened.hosts}, "ready")


def carry_settings(opened: OpenFleet, session: Session, place: Place) -> None:
    """Write `.env`, and `dflash.lock` if there is one, into the deployment directory of a host."""
    host, deployment = session.host, opened.deployment
    changes = shape_settings(opened.fleet, opened.chosen, plan_of(deployment), host, opened.fleet.leader.address)
    text = env_text(
        read_text(deployment.env_file),
        deployment.values,
        place_here(),
        place,
        changes | own_settings(opened.fleet, host),
    )
    if session.send(text.encode(), f"{host.directory}/.env"):
        opened.say(host, "settings and the API key are written, mode 0600")
    lock = deployment.directory / LOCK_FILE
    if lock.exists():
        session.send(read_text(lock).encode(), f"{host.directory}/{LOCK_FILE}")


def start_engine(opened: OpenFleet, session: Session, patience: float, command: str = "up") -> RemoteDocument:
    """Start the engine of a host and report its phases; wait for another command that runs there."""
    host, told = session.host, _Told(opened, session.host)
    waits_until = time.monotonic() + patience
    while True:
        document = call(
            session, opened.environment, command, "--dir", host.directory, "--patience", f"{patience:g}",
            "--json-stream", on_progress=told.tell,
        )  # fmt: skip
        error = error_of(host, document)
        if error is None:
            opened.say(host, _outcome(document))
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
        self.say(progress.phase, f"{progress.elapsed:4.0f} s  ")

    def say(self, phase: str, before: str = "") -> None:
        """Report a phase, unless it was reported a moment ago."""
        now = time.monotonic()
        if phase != self._phase or now - self._at > HEARTBEAT:
            self._phase, self._at = phase, now
            self._opened.say(self._host, f"{before}{phase}")


def fleet_restart(
    directory: Path, names: tuple[str, ...] = (), *, patience: float = PATIENCE, reporter: Reporter = SILENT
) -> FleetResult:
    """Stop the engines and start them: of replicas one host after the other, and no further one after a failure.

    Raises as `fleet_up`.
    """
    with locked(directory, "fleet restart"):
        opened = open_fleet(directory, names, reporter)
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
