"""Download the files of one model into its directory. A file appears only when it is complete and verified.

A file grows as `.pull/NAME.part` and is renamed when its digest is right, also after an interrupted run. `.pull/` also
contains the lock that prevents concurrent downloads.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.deployment.files import PUBLIC, remove_leftovers, replace_durably, sync_directory, write_atomically
from dflash_deploy.errors import DownloadFailed, FileRefused, SettingsRefused
from dflash_deploy.intake import MIB, Invalid, read_bytes
from dflash_deploy.intake.documents import Stamp, VerifiedStamps, parse_document
from dflash_deploy.weights.lockfile import LockedFile, LockedModel
from dflash_deploy.weights.source import Source
from dflash_deploy.weights.spans import FileProgress, Span, open_progress
from dflash_deploy.weights.staging import (
    STAGING,
    WORKERS,
    check_room,
    download_client,
    link_or_copy,
    locked_staging,
    named_write_errors,
    part_files,
)
from dflash_deploy.weights.transfer import Download, DownloadOptions, Transfer
from dflash_deploy.weights.verify import is_right

STAMPS = ".dflash-verified.json"
"""File beside the weights: size and time of those that were verified."""

__all__ = ["DownloadOptions", "FetchResult", "fetch", "missing_files", "reuse_file"]


@dataclass(frozen=True)
class FetchResult:
    """What was done for one model: files that existed, files reused from the Hub client's cache, and downloaded."""

    there: int
    reused: int
    fetched: int
    bytes_fetched: int


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
        progress = {file: open_progress(*part_files(staging, file), file) for file in wanted}
        left = sum(file.size - one.done for file, one in progress.items())
        check_room(directory, left, model)
        options.count(sum(file.size for file in model.files if file not in wanted))
        options.count(sum(one.done for one in progress.values()))
        if wanted:
            with download_client(direct=source.direct) as client:
                _fetch_all(Transfer(source, model, client, options), directory, staging, progress)
        _VerifiedFiles(directory).remember(model.files)
        _tidy(staging, model)
    return FetchResult(len(model.files) - len(absent), len(reused), len(wanted), left)


def _tidy(staging: Path, model: LockedModel) -> None:
    """Remove the partial files of this model. Those of other models stay, so that their downloads can resume."""
    for file in model.files:
        for place in part_files(staging, file):
            place.unlink(missing_ok=True)


def _fetch_all(transfer: Transfer, directory: Path, staging: Path, wanted: Mapping[LockedFile, FileProgress]) -> None:
    """Download these files over several connections, each resumed at its progress."""
    with ExitStack() as opened, ThreadPoolExecutor(WORKERS) as pool:
        jobs: list[Future[None]] = []
        for file in sorted(wanted, key=lambda file: -file.size):
            part = part_files(staging, file)[1]
            download = opened.enter_context(Download(transfer, file, part, wanted[file]))
            file_download = _FileDownload(download, directory / file.path)
            jobs += [pool.submit(file_download.fetch, span) for span in download.progress.spans]
        try:
            done, _ = wait(jobs, return_when=FIRST_EXCEPTION)
            for job in done:
                job.result()
        except BaseException:
            transfer.options.stopped.set()
            for job in jobs:
                job.cancel()
            raise


class _FileDownload:
    """Completes one file: the last of its connections verifies the file and renames it."""

    def __init__(self, download: Download, place: Path) -> None:
        self._download = download
        self._place = place
        self._spans_left = len(download.progress.spans)
        self._guard = threading.Lock()

    def fetch(self, span: Span) -> None:
        """Download one span; after the last one, verify and rename the file."""
        try:
            self._download.run(span)
        except BaseException:
            with contextlib.suppress(OSError):
                self._download.progress.save()
            raise
        with self._guard:
            self._spans_left -= 1
            last = self._spans_left == 0
        if last:
            self._complete()

    def _complete(self) -> None:
        download = self._download
        # a reset after other connections were done leaves bytes of their spans to fetch again
        self._fetch_spans()
        os.ftruncate(download.descriptor, download.file.size)
        if not is_right(download.part, download.file):
            self._again()
        os.fsync(download.descriptor)
        download.close()
        self._place.parent.mkdir(parents=True, exist_ok=True)
        download.part.replace(self._place)
        sync_directory(self._place.parent)
        download.progress.path.unlink(missing_ok=True)

    def _fetch_spans(self) -> None:
        for span in self._download.progress.spans:
            self._download.run(span)

    def _again(self) -> None:
        """Download the file again after a wrong digest. Raises DownloadFailed if the digest is wrong again."""
        download = self._download
        download.begin_again()
        self._fetch_spans()
        if not is_right(download.part, download.file):
            download.progress.reset()
            download.progress.save()
            raise DownloadFailed(
                f"{download.name}: the checksum differs from that of the Hugging Face Hub after two downloads",
                hint="a proxy or mirror changes the file: set another mirror in HF_ENDPOINT, or use no proxy",
            )


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
    return isinstance(found, str) and reuse_file(Path(found), file, directory)


def reuse_file(found: Path, file: LockedFile, directory: Path) -> bool:
    """Link or copy a file of this machine if its digest is right; return whether it is."""
    if not is_right(found, file):
        return False
    place, staged = directory / file.path, directory / STAGING / f"{file.path.replace('/', '%')}.copy"
    with named_write_errors(directory):
        staged.parent.mkdir(parents=True, exist_ok=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        staged.unlink(missing_ok=True)
        link_or_copy(found, staged)
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
