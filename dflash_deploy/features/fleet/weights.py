"""The weights of a fleet: each host downloads them, or one does and the others take them over the fabric.

The fabric is used if it is faster. `fleet weights`, `fleet take` and `fleet offer` run on a host, where `fleet up`
calls them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.lock import command_lock, locked
from dflash_deploy.errors import (
    BadInput,
    DeployError,
    DownloadFailed,
    FilesMissing,
    HostUnfit,
    HostUnreachable,
    Interrupted,
    WeightsMissing,
)
from dflash_deploy.features.fleet.each import HostOutcome, failure_of_all
from dflash_deploy.features.fleet.engines import call_patiently
from dflash_deploy.features.fleet.file import Fleet, FleetHost
from dflash_deploy.features.fleet.prepare import (
    ChosenWay,
    Fabric,
    HubRates,
    MovedWeights,
    RemoteFacts,
    find_fabric,
    known_way,
    measured_way,
    source_of,
)
from dflash_deploy.features.fleet.settings import NAME_COLUMN, OpenFleet
from dflash_deploy.features.fleet.ssh import RemoteData, RemoteDocument, RemoteProgress, Session, call, error_of
from dflash_deploy.intake.answers import fetch_answer, new_client
from dflash_deploy.intake.parse import Invalid
from dflash_deploy.operations.pull import Pulled, fetch_locked, hub_of
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.operations.up import with_weights
from dflash_deploy.planning import plan_of
from dflash_deploy.redact import Secret, generate_key
from dflash_deploy.startup.progress import StartProgress
from dflash_deploy.startup.start import check_models
from dflash_deploy.weights.fetch import DownloadOptions, Meter, fetch
from dflash_deploy.weights.lock import LOCK_FILE, Lock, parse_lock, read_lock, write_lock
from dflash_deploy.weights.offer import WeightsServer, offered_files, serving
from dflash_deploy.weights.pull import RequestedModel, lock_for, requested_models
from dflash_deploy.weights.source import Source, is_address, without_credentials

OFFERS = "offers weights"
"""The phase of an offer that listens; `last_line` is its URL."""

ANSWERS = 10.0
"""Seconds for the first answer of an offer."""

ABANDONED = 600.0
"""Seconds without a request that has the token, which an offer ends: the terminal was cut off from this host."""

TRANSFER_LOOKS = 1.0
"""Seconds between two looks whether an offer is still wanted."""

METER_LOOKS = 0.05
"""Seconds between two looks whether a measurement has ended."""


@dataclass(frozen=True)
class MissingWeights:
    """What a host lacks of its weights: bytes of files that are missing or have another size, and of all files.

    `lock` is the text of dflash.lock; empty if no lock is needed. `rate` is what the Hub sends to this host in bytes
    a second; `None` if it was not measured, or nothing arrived.
    """

    missing: int
    size: int
    lock: str
    rate: float | None = None

    def document(self) -> dict[str, object]:
        """The `data` of `fleet weights --json`."""
        return {
            "missing_bytes": self.missing,
            "bytes": self.size,
            "lock": self.lock,
            "bytes_per_second": self.rate and round(self.rate),
        }


def fleet_weights(directory: Path, *, probe: float = 0.0) -> MissingWeights:
    """Return what a host lacks of its weights; write dflash.lock first if it is needed and missing.

    `probe`: download for this many seconds to measure the Hub; what arrives is kept. Raises NoDeployment,
    DirectoryBusy, and DownloadFailed if the commits cannot be resolved.
    """
    deployment = Deployment.existing(directory)
    plan = plan_of(deployment)
    wanted = requested_models(deployment, plan)
    file = deployment.directory / LOCK_FILE
    before = read_lock(file)
    if not wanted:
        return MissingWeights(0, 0, "")
    if before is None:
        # weights that were copied by hand need no lock
        with suppress(WeightsMissing):
            check_models(deployment, plan)
            return MissingWeights(0, 0, "")
    with command_lock(deployment, "fleet weights"):
        source = hub_of(deployment)
        lock = lock_for(wanted, before, source)
        write_lock(file, lock)
        missing = _missing_here(wanted, lock)
        rate = _measured_files(source, wanted, lock, probe) if probe and missing else None
    return MissingWeights(missing, sum(model.size for model in lock.models.values()), lock.text(), rate)


def _missing_here(wanted: tuple[RequestedModel, ...], lock: Lock) -> int:
    """Bytes of the files that are missing or have another size: digests are checked when files are fetched."""
    return sum(
        file.size
        for requested in wanted
        for file in lock.models[requested.role].files
        if _size_of(requested.directory / file.path) != file.size
    )


def _size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _measured_files(source: Source, wanted: tuple[RequestedModel, ...], lock: Lock, seconds: float) -> float | None:
    """Download for some seconds; return bytes per second, `None` if nothing arrived."""
    me, meter = threading.get_ident(), Meter(seconds)

    def count(size: int) -> None:
        # this thread counts what is there, when the files are checked; what arrives is counted by the connections
        if threading.get_ident() == me:
            meter.resume()
        else:
            meter.add(size)

    options = DownloadOptions(count=count)
    with _stopped_by(meter, options.stopped), suppress(Interrupted, DownloadFailed):
        for requested in wanted:
            fetch(source, lock.models[requested.role], requested.directory, options)
            meter.pause()
    return meter.rate


@contextmanager
def _stopped_by(meter: Meter, stopped: threading.Event) -> Iterator[None]:
    """Set `stopped` when the measurement ends, or the block does."""

    def watch() -> None:
        while not meter.end_if_due() and not stopped.wait(METER_LOOKS):
            continue
        stopped.set()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def fleet_take(
    directory: Path,
    *,
    url: str = "",
    token: Secret | None = None,
    stopped: threading.Event | None = None,
    reporter: Reporter = SILENT,
) -> Pulled | None:
    """Fetch the weights that a host lacks: from the offer of another host at `url`, else from the Hub as `up` does.

    Returns what was fetched from an offer, `None` from the Hub. Set `stopped` to end a transfer from an offer. Raises
    BadInput for a URL that is not valid, DownloadFailed, DirectoryBusy, Interrupted, and as `up` before a start.
    """
    if url and not is_address(url):
        raise BadInput(
            f"`{without_credentials(url)[:200]}` is not a valid URL",
            hint="use the URL that `fleet offer` prints on the other host: http://ADDRESS:PORT",
        )
    with locked(directory, "fleet take") as deployment:
        if not url:
            with_weights(deployment, reporter, ask=True)
            return None
        lock = read_lock(deployment.directory / LOCK_FILE)
        if lock is None:
            raise FilesMissing("dflash.lock does not exist yet", hint="`dflash-deploy fleet up` writes it")
        source = Source(url, token or Secret(""), direct=True)
        _require_answer(source)
        wanted = requested_models(deployment, plan_of(deployment))
        return fetch_locked(deployment, wanted, lock, source, stopped=stopped, reporter=reporter)


def _require_answer(source: Source) -> None:
    """Raise DownloadFailed if nothing answers there: each file would be tried for minutes."""
    with new_client(timeout=ANSWERS, trust_env=False) as client:
        try:
            fetch_answer(client, client.build_request("GET", f"{source.endpoint}/"), seconds=ANSWERS)
        except (httpx.HTTPError, Invalid) as problem:
            raise DownloadFailed(
                f"the host that offers weights at {source.shown} does not answer: {problem}",
                hint="allow connections between the hosts on this link, or write `weights: hub` into fleet.yaml",
            ) from None


def fleet_offer(
    directory: Path, *, address: str, token: Secret, ended: threading.Event, reporter: Reporter = SILENT
) -> str:
    """Offer the weights of this host to the others at one of its addresses, until `ended` or ABANDONED; return its URL.

    Set `ended` when the offer is no longer wanted. Raises NoDeployment, FilesMissing without a lock, and DownloadFailed
    if the address cannot be used.
    """
    deployment = Deployment.existing(directory)
    lock = read_lock(deployment.directory / LOCK_FILE)
    if lock is None:
        raise FilesMissing("dflash.lock does not exist yet", hint="`dflash-deploy pull` writes it")
    files = offered_files(requested_models(deployment, plan_of(deployment)), lock)
    try:
        server = WeightsServer(address, files, token)
    except OSError as problem:
        raise DownloadFailed(
            f"weights cannot be offered at {address}: {problem.strerror}", hint="check `ip -brief address`"
        ) from None
    with serving(server), reporter.starting() as show:
        show(StartProgress(OFFERS, 0.0, server.url))
        while not ended.wait(TRANSFER_LOOKS) and server.idle < ABANDONED:
            continue
    return server.url


PROBE = 3.0
"""Seconds of a download that measures what the Hub sends. What arrives is kept."""

LOOKS = 300.0
"""Seconds for a host to say what it lacks: it may ask the Hub for the commits."""

Facts = Mapping[str, RemoteFacts]


@dataclass(frozen=True)
class BroughtWeights:
    """How weights reached the hosts, and the errors of hosts that did not get them; `None` if nothing is fetched."""

    moved: MovedWeights | None
    failed: Mapping[str, DeployError] = field(default_factory=dict)


def move_weights(opened: OpenFleet, hosts: tuple[FleetHost, ...], facts: Facts, patience: float) -> BroughtWeights:
    """Move the weights to the hosts, if the way over the fabric is the faster one or `fleet.yaml` asks for it.

    Otherwise `up` downloads on each host. All hosts get the same commits: dflash.lock of the first one, which is kept
    on this machine too. `patience` is for other commands that run there.
    """
    if not hosts or not requested_models(opened.deployment, plan_of(opened.deployment)):
        return BroughtWeights(None)
    fleet = opened.fleet.model_copy(update={"hosts": hosts})
    began = time.monotonic()
    try:
        missing = _missing(opened, fleet)
        fabric = _link(fleet, facts)
        way = known_way(fleet, missing, fabric) or _measured(opened, fleet, missing, fabric)
        _say(opened, way, fabric)
        takers = tuple(host for host in hosts if missing.get(host.name) and host.name != way.source)
        if way.way != "fabric" or fabric is None:
            return BroughtWeights(MovedWeights(way))
        failed = _over_fabric(opened, way.source, takers, fabric, missing, patience)
    except DeployError as problem:
        if fleet.weights == "fabric":
            return BroughtWeights(None, {host.name: problem for host in hosts})
        # `up` finds the same problem on the host, with what it needs to explain it
        way = ChosenWay("hub", opened.deployment.redact(problem.message))
        _say(opened, way, None)
        return BroughtWeights(MovedWeights(way))
    if failed and fleet.weights == "auto":
        reason = next(iter(failed.values())).message
        opened.reporter.note(f"{'weights':{NAME_COLUMN}} the other way failed: each host downloads")
        return BroughtWeights(MovedWeights(ChosenWay("hub", opened.deployment.redact(reason))))
    done = sum(missing[host.name] for host in takers if host.name not in failed)
    return BroughtWeights(MovedWeights(way, done, time.monotonic() - began), failed)


def _say(opened: OpenFleet, way: ChosenWay, fabric: Fabric | None) -> None:
    over = fabric.ports[way.source].interface if fabric is not None and way.source else ""
    said = {"present": "", "hub": "each host downloads: ", "fabric": f"{way.source} fetches, the others over {over}: "}
    opened.reporter.note(f"{'weights':{NAME_COLUMN}} {said[way.way]}{way.reason}")


def _missing(opened: OpenFleet, fleet: Fleet) -> Mapping[str, int]:
    """Bytes that each host lacks, after all have the lock of the first one that has any. Raises the error of a host.

    A host whose weights were copied by hand has no lock: it needs nothing, cannot offer anything, and is left out.
    """
    rest = list(fleet.ranked)
    while rest:
        first = rest.pop(0)
        known = _data(opened, (first,))[first.name]
        if known.lock:
            break
    else:
        return {}
    _keep_lock(opened, first, known.lock)

    def look(session: Session) -> RemoteDocument:
        session.send(known.lock.encode(), f"{session.host.directory}/{LOCK_FILE}")
        return opened.call(session, "fleet weights", "--json", seconds=LOOKS)

    others = _of_all(opened.on_each(look, tuple(rest))) if rest else {}
    return {name: data.missing_bytes or 0 for name, data in {first.name: known, **others}.items()}


def _keep_lock(opened: OpenFleet, host: FleetHost, text: str) -> None:
    try:
        write_lock(opened.deployment.directory / LOCK_FILE, parse_lock(text))
    except Invalid as problem:
        raise HostUnfit(f"{host.name}: its {LOCK_FILE} {problem}", hint="remove it there") from None


def _data(opened: OpenFleet, hosts: tuple[FleetHost, ...], *options: str) -> Mapping[str, RemoteData]:
    """What `fleet weights` says on these hosts at the same time. Raises the error of a host."""
    return _of_all(
        opened.on_each(lambda one: opened.call(one, "fleet weights", *options, "--json", seconds=LOOKS), hosts)
    )


def _of_all(outcomes: Mapping[str, HostOutcome[RemoteDocument]]) -> Mapping[str, RemoteData]:
    if (failure := failure_of_all(outcomes)) is not None:
        raise failure
    documents = {name: outcome.result for name, outcome in outcomes.items() if outcome.result is not None}
    for name, document in documents.items():
        if (error := error_of(outcomes[name].host, document)) is not None:
            raise error
    return {name: document.data for name, document in documents.items()}


def _link(fleet: Fleet, facts: Facts) -> Fabric | None:
    try:
        return find_fabric(fleet, {host.name: facts[host.name].links for host in fleet.hosts})
    except HostUnfit:
        return None


def _measured(opened: OpenFleet, fleet: Fleet, missing: Mapping[str, int], fabric: Fabric | None) -> ChosenWay:
    """Measure the Hub on all hosts together, and on the first one by itself; return the faster way."""
    lacking = tuple(host for host in fleet.hosts if missing.get(host.name))
    probe = ("--probe", f"{PROBE:g}")
    opened.reporter.note(f"{'weights':{NAME_COLUMN}} measures the Hub and the hosts' way to it for {2 * PROBE:g} s")
    together = {name: data.bytes_per_second for name, data in _data(opened, lacking, *probe).items()}
    source = source_of(fleet, missing, together)
    alone = tuple(host for host in lacking if host.name == source and len(lacking) > 1)
    rate = _data(opened, alone, *probe)[source].bytes_per_second if alone else together.get(source)
    assert fabric is not None  # noqa: S101 - `known_way` decides without a link
    return measured_way(fleet, missing, fabric, HubRates(together, rate))


def _over_fabric(
    opened: OpenFleet,
    source: str,
    takers: tuple[FleetHost, ...],
    fabric: Fabric,
    missing: Mapping[str, int],
    patience: float,
) -> Mapping[str, DeployError]:
    """Let one host fetch what it lacks, and the others take it from there; return the errors by host."""
    (host,) = opened.fleet.named((source,))
    if missing[source]:
        fetched = opened.on_each(lambda one: call_patiently(opened, one, "fleet take", patience=patience), (host,))
        if (problem := fetched[source].error) is not None:
            not_copied = (f"{one.name}: no weights to copy: {problem.message}" for one in takers)
            skipped = {
                one.name: DownloadFailed(said, hint=problem.hint) for one, said in zip(takers, not_copied, strict=True)
            }
            return {source: problem, **skipped}
    transfer = _Transfer(len(takers))

    def work(session: Session) -> RemoteDocument:
        if session.host is host:
            return _offered(opened, session, transfer, fabric.addresses[source])
        with transfer.taking() as (url, make):
            if not url:
                raise HostUnreachable(f"{session.host.name}: {source} offers no weights", hint="run it again")
            document = call_patiently(opened, session, "fleet take", "--from", url, patience=patience, stdin=make)
        opened.say(session.host, f"has the weights, from {source}")
        return document

    outcomes = opened.on_each(work, (host, *takers))
    return {name: one.error for name, one in outcomes.items() if one.error is not None}


def _offered(opened: OpenFleet, session: Session, transfer: _Transfer, address: str) -> RemoteDocument:
    """Offer the weights of a host until all others have them."""

    def on_progress(progress: RemoteProgress) -> None:
        if progress.phase == OFFERS:
            transfer.opened(progress.last_line)

    try:
        document = call(
            session, opened.environment, "fleet", "offer", "--dir", session.host.directory, "--address", address,
            "--json-stream", on_progress=on_progress, stdin=transfer.offer,
        )  # fmt: skip
    finally:
        transfer.opened("")
    if (error := error_of(session.host, document)) is not None:
        raise error
    return document


class _Held:
    """The standard input of a command on a host: a line with the token, and no end before `release`.

    If this program ends, its end tells the host that the transfer is no longer wanted.
    """

    def __init__(self, token: Secret) -> None:
        self._unread = f"{token.reveal()}\n".encode()
        self._released = threading.Event()

    def read(self, size: int, /) -> bytes:
        """The token once; then nothing, after `release`."""
        given, self._unread = self._unread, b""
        if not given:
            self._released.wait()
        return given

    def release(self) -> None:
        """Let the input end."""
        self._released.set()


class _Transfer:
    """One offer and those who take it. `token` is that of this transfer."""

    def __init__(self, takers: int) -> None:
        self.token = generate_key()
        self.offer = _Held(self.token)
        self._url = ""
        self._opened = threading.Event()
        self._left = takers
        self._guard = threading.Lock()

    def opened(self, url: str) -> None:
        """The offer listens at this URL; with an empty one it has ended."""
        self._url = url
        self._opened.set()

    @contextmanager
    def taking(self) -> Iterator[tuple[str, Callable[[], _Held]]]:
        """Wait for the offer; yield its URL, empty without one, and what makes the input of a command that takes it.

        The inputs end with the block, and the offer with the last of the blocks.
        """
        made: list[_Held] = []

        def make() -> _Held:
            made.append(_Held(self.token))
            return made[-1]

        try:
            self._opened.wait()
            yield self._url, make
        finally:
            for held in made:
                held.release()
            with self._guard:
                self._left -= 1
                if self._left <= 0:
                    self.offer.release()
