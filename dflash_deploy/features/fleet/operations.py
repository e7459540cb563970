"""`fleet init`, `status`, `test`, `down` and `logs`: they change no settings of the hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue

from dflash_deploy.deployment.directory import FLEET_FILE, Deployment
from dflash_deploy.deployment.files import FULL, PUBLIC, not_written, write_atomically
from dflash_deploy.deployment.lock import locked
from dflash_deploy.document import CommandData
from dflash_deploy.errors import BadInput, DeployError
from dflash_deploy.features.fleet import scripts, ssh
from dflash_deploy.features.fleet.engines import leave_all, stop_engine, with_routes
from dflash_deploy.features.fleet.file import FleetHost, fleet_text, host_from
from dflash_deploy.features.fleet.host import FetchedWeights, MachineFacts, Routed
from dflash_deploy.features.fleet.prepare import ExaminedHost, examine
from dflash_deploy.features.fleet.settings import (
    FleetResult,
    HostOutcome,
    OpenFleet,
    failure_of_all,
    host_result,
    open_fleet,
)
from dflash_deploy.features.fleet.ssh import RemoteDocument, Session
from dflash_deploy.operations.reporter import SILENT, Reporter

LOOKS = 180.0
"""Seconds for a `status` on a host: it asks the engine for one generation."""

TESTS = 3600.0
"""Seconds for a `test` on a host."""


@dataclass(frozen=True)
class FleetCreated(FleetResult):
    """The hosts of `fleet.yaml`, and whether they can be used."""

    file: Path
    """Path of fleet.yaml."""
    written: bool
    """Whether it was written; false if an existing file was checked."""


def fleet_init(
    directory: Path, hosts: tuple[str, ...] = (), *, force: bool = False, reporter: Reporter = SILENT
) -> FleetCreated:
    """Write `fleet.yaml` for hosts, each `[NAME=][USER@]ADDRESS`, and check that they can be used.

    Without hosts the existing file is checked. Raises NoDeployment, BadInput if there is a file already or no hosts
    are given, PreflightRefused if the disk is full. Failures of hosts are in the result.
    """
    with locked(directory, "fleet init") as deployment:
        file = deployment.directory / FLEET_FILE
        written = _written(file, tuple(map(host_from, hosts)), force=force)
        try:
            opened = open_fleet(directory, (), reporter)
        except DeployError:
            if written:
                file.unlink()
            raise

        def look(session: Session) -> ExaminedHost:
            found = examine(session)
            opened.say(session.host, f"{found.system}, {found.free / 2**30:.0f} GiB free, clock {found.ahead:+d} s")
            return found

        outcomes = opened.on_each(look)
    rows = [
        host_result(
            one.host,
            opened.fleet.ranked.index(one.host),
            "failed" if one.error else "usable",
            one.seconds,
            failure=one.error,
        )
        for one in outcomes.values()
    ]
    done = opened.result(rows, failure_of_all(outcomes))
    return FleetCreated(done.failure, done.shape, done.reason, done.router, done.hosts, file, written)


def _written(file: Path, hosts: tuple[FleetHost, ...], *, force: bool) -> bool:
    """Write the file if hosts are given; return whether it was written."""
    if not hosts:
        if not file.exists():
            raise BadInput("no hosts are given", hint="dflash-deploy fleet init nvidia@spark-a nvidia@spark-b")
        return False
    names = [host.name for host in hosts]
    if len(set(names)) < len(names):
        raise BadInput("two hosts have the same name", hint="name them: spark-a=nvidia@192.168.1.10")
    if file.exists() and not force:
        raise BadInput(
            f"{file} already exists", hint="edit it; `fleet init` without hosts checks it, --force replaces it"
        )
    try:
        write_atomically(file, fleet_text(hosts), mode=PUBLIC)
    except OSError as problem:
        if problem.errno in FULL:
            raise not_written(file, problem) from None
        raise BadInput(f"{file} cannot be written: {problem.strerror}", hint="check the directory") from None
    return True


def fleet_status(directory: Path, names: tuple[str, ...] = (), *, reporter: Reporter = SILENT) -> FleetResult:
    """Return the state of the engine on each host; each is asked for one generation. Raises as `open_fleet`."""
    opened = open_fleet(directory, names, reporter)
    done = opened.results(opened.on_each(lambda one: opened.call(one, "status", "--json", seconds=LOOKS)), "unknown")
    return replace(done, hosts=with_routes(opened, done.hosts)) if opened.front else done


def fleet_test(directory: Path, names: tuple[str, ...] = (), *, reporter: Reporter = SILENT) -> FleetResult:
    """Run the checks of `test` on each host that answers requests. Raises as `open_fleet`."""
    opened = open_fleet(directory, names, reporter)
    outcomes = opened.on_each(
        lambda one: opened.call(one, "test", "--json", seconds=TESTS), answering(opened, opened.hosts)
    )
    return opened.results(outcomes, "passed")


def fleet_down(directory: Path, names: tuple[str, ...] = (), *, reporter: Reporter = SILENT) -> FleetResult:
    """Stop the engine on each host; weights and settings stay. Raises as `open_fleet`, and DirectoryBusy."""
    with locked(directory, "fleet down"):
        opened = open_fleet(directory, names, reporter)
        opened.require_all()
        outcomes: dict[str, HostOutcome[RemoteDocument]] = {}
        for hosts in _in_order(opened):
            outcomes |= opened.on_each(lambda one: stop_engine(opened, one), hosts)
        return opened.results({host.name: outcomes[host.name] for host in opened.hosts}, "stopped")


def _in_order(opened: OpenFleet) -> Iterator[tuple[FleetHost, ...]]:
    """The hosts as they stop: the one with the door first, then no request is on its way to an engine that stops."""
    leader = opened.fleet.leader
    if opened.front and leader not in opened.hosts:
        leave_all(opened)
    if not opened.front or leader not in opened.hosts or len(opened.hosts) == 1:
        yield opened.hosts
        return
    yield (leader,)
    yield tuple(host for host in opened.hosts if host is not leader)


def answering(opened: OpenFleet, hosts: tuple[FleetHost, ...]) -> tuple[FleetHost, ...]:
    """The hosts that answer requests. Raises BadInput if none of them does."""
    if opened.chosen.shape == "replicas":
        return hosts
    leader = opened.fleet.leader
    if leader not in hosts:
        raise BadInput(f"only {leader.name} answers requests", hint=f"name it with --host {leader.name}, or no host")
    return (leader,)


def fleet_logs(
    directory: Path, names: tuple[str, ...] = (), *, tail: int | None = None, reporter: Reporter = SILENT
) -> Iterator[tuple[str, str]]:
    """Yield the lines of the engines' logs as they arrive, each with the name of its host, without secrets.

    Raises as `open_fleet`, and the error of a host after the lines of the others.
    """
    opened = open_fleet(directory, names, reporter)
    queue: SimpleQueue[tuple[str, str]] = SimpleQueue()
    options = () if tail is None else ("--tail", str(tail))

    def read(session: Session) -> None:
        host = session.host
        words = scripts.run(host, opened.environment, "logs", "--dir", host.directory, *options)
        ended = session.run(words, seconds=LOOKS, on_line=_to(queue, host.name, opened.deployment))
        if ended.code:
            raise ssh.script_failure(host, ended.code, ended.err)

    outcomes = opened.on_each(read)
    while not queue.empty():
        yield queue.get()
    if (failure := failure_of_all(outcomes)) is not None:
        raise failure


def _to(queue: SimpleQueue[tuple[str, str]], name: str, deployment: Deployment) -> Callable[[bytes], None]:
    def take(line: bytes) -> None:
        queue.put((name, deployment.redact(line.decode("utf-8", "replace"))))

    return take


DOCUMENTS: Mapping[str, CommandData] = {
    "fleet init": CommandData((FleetCreated,)),
    **{f"fleet {name}": CommandData((FleetResult,)) for name in ("up", "status", "test", "down", "restart")},
    "fleet facts": CommandData((MachineFacts,)),
    "fleet fetch": CommandData((FetchedWeights,), streams=True),
    "fleet route": CommandData((Routed,), streams=True),
}
