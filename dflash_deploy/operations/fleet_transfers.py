"""`fleet weights`, `fleet take` and `fleet offer`: the weights of a host of a fleet. `fleet up` calls them there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from dflash_deploy.deployment import Deployment, command_lock, locked
from dflash_deploy.errors import BadInput, DownloadFailed, FilesMissing, Interrupted, WeightsMissing
from dflash_deploy.intake import Invalid
from dflash_deploy.intake.answers import fetch_answer, new_client
from dflash_deploy.operations.complete import with_weights
from dflash_deploy.operations.fetching import Pulled, fetch_locked, hub_of
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.planning import plan_of
from dflash_deploy.redact import Secret
from dflash_deploy.startup.preflight import check_models
from dflash_deploy.startup.progress import StartProgress
from dflash_deploy.weights.fetch import DownloadOptions, fetch
from dflash_deploy.weights.lockfile import LOCK_FILE, Lock, read_lock, write_lock
from dflash_deploy.weights.meter import Meter
from dflash_deploy.weights.offer import WeightsServer, offered_files, serving
from dflash_deploy.weights.pull import RequestedModel, lock_for, requested_models
from dflash_deploy.weights.source import Source, is_address, without_credentials

OFFERS = "offers weights"
"""The phase of an offer that listens; `last_line` is its URL."""

ANSWERS = 10.0
"""Seconds for the first answer of an offer."""

ABANDONED = 600.0
"""Seconds without a request that has the token, which an offer ends: the terminal was cut off from this host."""

LOOKS = 1.0
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
        missing = _missing(wanted, lock)
        rate = _measured(source, wanted, lock, probe) if probe and missing else None
    return MissingWeights(missing, sum(model.size for model in lock.models.values()), lock.text(), rate)


def _missing(wanted: tuple[RequestedModel, ...], lock: Lock) -> int:
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


def _measured(source: Source, wanted: tuple[RequestedModel, ...], lock: Lock, seconds: float) -> float | None:
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
        while not ended.wait(LOOKS) and server.idle < ABANDONED:
            continue
    return server.url
