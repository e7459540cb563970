"""Downloads the files of one model into its directory; a file appears only when it is complete and verified.

A file grows as `.pull/NAME.part` and is renamed when its digest is right, also after an interrupted run. `.pull/` also
contains the lock that prevents concurrent downloads; free disk space is checked first.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from dflash_deploy.deployment.files import PUBLIC, remove_leftovers, replace_durably, write_atomically
from dflash_deploy.errors import DirectoryBusy, FileRefused, NoRoom, SettingsRefused
from dflash_deploy.host.machine import disk_room
from dflash_deploy.intake.answers import new_client
from dflash_deploy.intake.documents import Stamp, VerifiedStamps, parse_document
from dflash_deploy.intake.files import MIB, read_bytes
from dflash_deploy.intake.parse import Invalid
from dflash_deploy.plan.memory import GIB
from dflash_deploy.serve.settings import Settings
from dflash_deploy.weights.check import is_right
from dflash_deploy.weights.download import (
    PATIENCE,
    Download,
    DownloadOptions,
    Transfer,
    part_files,
    resumed,
)
from dflash_deploy.weights.hub import Source
from dflash_deploy.weights.lock import LockedFile, LockedModel

WORKERS = 8
STAGING = ".pull"
LOCK = "lock"
SPARE = 256 * 2**20  # bytes that a download leaves free on the disk
_WHERE = f"`init --models-dir`, {Settings.model_host_path}"

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def named_write_errors(directory: Path) -> Iterator[None]:
    """Turn errors of writing into errors that name the directory."""
    try:
        yield
    except OSError as problem:
        if problem.errno in _FULL:
            raise NoRoom(
                f"the disk of {directory} is full", hint="free disk space, then continue with `dflash-deploy pull`"
            ) from None
        if problem.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
            raise NoRoom(
                f"{directory} cannot be written: {problem.strerror}",
                hint=f"choose another directory ({_WHERE}), or change its owner",
            ) from None
        place = f"{problem.filename}: " if problem.filename else ""
        raise NoRoom(
            f"{directory} cannot be written: {place}{problem.strerror or problem}",
            hint="remove what is in the way (`ls -l`), or check the disk (`dmesg | tail`)",
        ) from None


@contextmanager
def locked_staging(directory: Path) -> Iterator[Path]:
    """Lock and return the directory of partial downloads. Raises DirectoryBusy if another run holds the lock."""
    staging = directory / STAGING
    staging.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(staging / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield staging
    except BlockingIOError:
        raise DirectoryBusy(
            f"another command downloads into {directory}", hint="wait until it ends, then run the command again"
        ) from None
    finally:
        os.close(descriptor)


def link_or_copy(found: Path, place: Path) -> None:
    """Hard-link a file to `place` if it is on the same disk, else copy it.

    Symlinks are resolved first, since their targets do not exist in a container.
    """
    real = found.resolve()
    try:
        os.link(real, place)
    except OSError:
        shutil.copyfile(real, place)


def check_room(directory: Path, left: int, model: LockedModel) -> None:
    """Raise NoRoom if the disk of a directory has no space for `left` more bytes."""
    room = disk_room(directory)
    free = room.free if room is not None else 0
    if left and room is not None and left + SPARE > free:
        raise NoRoom(
            f"{model.repo} needs {left / GIB:.1f} GiB more in {directory}, {free / GIB:.1f} GiB are free",
            hint=f"free disk space, or choose a directory on another disk ({_WHERE})",
        )


def download_client() -> httpx.Client:
    """Return an HTTP client for all connections of one download. Raises SettingsRefused for an unusable proxy."""
    limits = httpx.Limits(max_connections=2 * WORKERS, max_keepalive_connections=2 * WORKERS)
    return new_client(timeout=httpx.Timeout(PATIENCE, connect=15.0), limits=limits)


STAMPS = ".dflash-verified.json"  # file beside the weights: size and time of those that were verified
__all__ = ["DownloadOptions", "FetchResult", "fetch", "missing_files"]


@dataclass(frozen=True)
class FetchResult:
    """What was done for one model: files that existed, files reused from the Hub client's cache, and downloaded."""

    there: int
    reused: int
    fetched: int


def missing_files(directory: Path, model: LockedModel) -> tuple[LockedFile, ...]:
    """Return the files that are missing or wrong. Files that were verified before and are unchanged are not read."""
    known = _VerifiedFiles(directory)
    return tuple(file for file in model.files if not known.is_right(file))


def fetch(source: Source, model: LockedModel, directory: Path, options: DownloadOptions) -> FetchResult:
    """Download missing files. Raises NoRoom before the first byte if the disk is too small, and DownloadFailed."""
    with named_write_errors(directory), locked_staging(directory) as staging:
        remove_leftovers(staging, "*")
        remove_leftovers(directory, STAMPS)
        absent = missing_files(directory, model)
        reused = [file for file in absent if _from_cache(source, model, file, directory)]
        wanted = [file for file in absent if file not in reused]
        there = sum(resumed(staging, file)[0] for file in wanted)
        left = sum(file.size for file in wanted) - there
        check_room(directory, left, model)
        options.count(sum(file.size for file in model.files if file not in wanted) + there)
        if wanted:
            with download_client() as client:
                _fetch_all(Transfer(source, model, client, options), directory, staging, wanted)
        _VerifiedFiles(directory).remember(model.files)
        # those of other models stay, so that their downloads can resume
        for place in (part for file in model.files for part in part_files(staging, file)):
            place.unlink(missing_ok=True)
    return FetchResult(len(model.files) - len(absent), len(reused), len(wanted))


def _fetch_all(transfer: Transfer, directory: Path, staging: Path, wanted: Iterable[LockedFile]) -> None:
    """Download these files, several at once, each resumed where an earlier run stopped."""

    def fetch_one(file: LockedFile) -> None:
        with Download(transfer, file, staging) as download:
            download.finish(directory / file.path)

    with ThreadPoolExecutor(WORKERS) as pool:
        jobs = [pool.submit(fetch_one, file) for file in sorted(wanted, key=lambda file: -file.size)]
        try:
            done, _ = wait(jobs, return_when=FIRST_EXCEPTION)
            for job in done:
                job.result()
        except BaseException:
            transfer.options.stopped.set()
            for job in jobs:
                job.cancel()
            raise


def _from_cache(source: Source, model: LockedModel, file: LockedFile, directory: Path) -> bool:
    """Reuse a complete file of the Hub client's cache: hard link on the same disk, else a copy."""
    try:
        from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - 0.3 s, needed for downloads only
    except ValueError as problem:
        # it reads its numbers when it is imported
        raise SettingsRefused(
            f"a variable of huggingface_hub (HF_HUB_...) is not valid: {problem}",
            hint="correct it: `env | grep HF_HUB`",
        ) from None
    try:
        found = try_to_load_from_cache(model.repo, file.path, revision=model.commit)
    except ValueError:
        # a name that its cache cannot have
        return False
    if not isinstance(found, str) or not is_right(Path(found), file):
        return False
    place, staged = directory / file.path, directory / STAGING / f"{file.path.replace('/', '%')}.copy"
    place.parent.mkdir(parents=True, exist_ok=True)
    staged.unlink(missing_ok=True)
    link_or_copy(Path(found), staged)
    replace_durably(staged, place)
    return True


class _VerifiedFiles:
    """Files verified before, by size and modification time, so that `up` does not read 20 GB every time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = directory / STAMPS
        try:
            read = parse_document(read_bytes(self._file, limit=16 * MIB, links=False), VerifiedStamps, limit=16 * MIB)
            self._known = read.root
        except (FileRefused, Invalid):
            self._known = {}

    def is_right(self, file: LockedFile) -> bool:
        """Return whether the file matches the lock, from the saved stamp or by its digest."""
        stamp = self._stamp(file)
        if stamp is None:
            return False
        return self._known.get(file.path) == stamp or is_right(self._directory / file.path, file)

    def remember(self, files: tuple[LockedFile, ...]) -> None:
        """Save that these files are verified."""
        found = {file.path: self._stamp(file) for file in files}
        stamps = self._known | {path: stamp for path, stamp in found.items() if stamp is not None}
        with contextlib.suppress(OSError):
            write_atomically(self._file, json.dumps(stamps), mode=PUBLIC)

    def _stamp(self, file: LockedFile) -> Stamp | None:
        try:
            status = (self._directory / file.path).stat()
        except OSError:
            return None
        if status.st_size != file.size:
            return None
        return status.st_size, status.st_mtime_ns, file.sha256 or file.blob
