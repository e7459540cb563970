"""Bringing the files of one model into its directory: real files, each whole or not there.

A file grows as `.pull/NAME.part` and is renamed when its digest is right, so that what has its name is what it should
be, whatever ended the run. `.pull/` also holds the lock that keeps two runs apart.
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

from dflash_deploy.deployment.files import PUBLIC, write_atomically
from dflash_deploy.errors import DownloadFailed
from dflash_deploy.weights.hub import Source
from dflash_deploy.weights.lockfile import LockedFile, LockedModel
from dflash_deploy.weights.spans import Progress, Span, open_progress
from dflash_deploy.weights.staging import (
    STAGING,
    WORKERS,
    check_room,
    link_or_copy,
    new_client,
    places,
    staging_of,
    writing,
)
from dflash_deploy.weights.transfer import Download, Transfer, Wish
from dflash_deploy.weights.verify import is_right

__all__ = ["Fetched", "Wish", "fetch", "missing_files", "take_over"]


@dataclass(frozen=True)
class Fetched:
    """What was done for one model: files that were there already, from the hub client's cache, and fetched."""

    there: int
    reused: int
    fetched: int
    bytes_fetched: int


def missing_files(directory: Path, model: LockedModel) -> tuple[LockedFile, ...]:
    """The files that are not there, or not right. What was found right before, and is untouched, is not read again."""
    known = _Known(directory)
    return tuple(file for file in model.files if not known.is_right(file))


def fetch(source: Source, model: LockedModel, directory: Path, wish: Wish) -> Fetched:
    """Bring what is missing. Raises NoRoom before the first byte where the disk is too small, and DownloadFailed."""
    with writing(directory), staging_of(directory) as staging:
        absent = missing_files(directory, model)
        reused = [file for file in absent if _from_cache(source, model, file, directory)]
        wanted = [file for file in absent if file not in reused]
        progress = {file: open_progress(*places(staging, file), file) for file in wanted}
        left = sum(file.size - one.done for file, one in progress.items())
        check_room(directory, left, model)
        wish.count(sum(file.size for file in model.files if file not in wanted))
        wish.count(sum(one.done for one in progress.values()))
        if wanted:
            with new_client() as client:
                _fetch_all(Transfer(source, model, client, wish), directory, staging, progress)
        _Known(directory).remember(model.files)
        _tidy(staging, model)
    return Fetched(len(model.files) - len(absent), len(reused), len(wanted), left)


def _tidy(staging: Path, model: LockedModel) -> None:
    """Take away what is no longer on its way. What belongs to other files stays: an earlier run is gone on with."""
    for file in model.files:
        for place in places(staging, file):
            place.unlink(missing_ok=True)


def _fetch_all(transfer: Transfer, directory: Path, staging: Path, wanted: Mapping[LockedFile, Progress]) -> None:
    """Fetch these files, each from where its progress says, over several connections at a time."""
    with ExitStack() as opened, ThreadPoolExecutor(WORKERS) as pool:
        jobs: list[Future[None]] = []
        for file in sorted(wanted, key=lambda file: -file.size):
            part = places(staging, file)[1]
            download = opened.enter_context(Download(transfer, file, part, wanted[file]))
            landing = _Landing(download, directory / file.path)
            jobs += [pool.submit(landing.bring, span) for span in download.progress.spans]
        try:
            done, _ = wait(jobs, return_when=FIRST_EXCEPTION)
            for job in done:
                job.result()
        except BaseException:
            transfer.wish.stopped.set()
            for job in jobs:
                job.cancel()
            raise


class _Landing:
    """Follows one file to its end: the last of its connections checks it and gives it its name."""

    def __init__(self, download: Download, place: Path) -> None:
        self._download = download
        self._place = place
        self._flying = len(download.progress.spans)
        self._guard = threading.Lock()

    def bring(self, span: Span) -> None:
        """Fetch one span; the last one lands the file."""
        try:
            self._download.run(span)
        except BaseException:
            with contextlib.suppress(OSError):
                self._download.progress.save()
            raise
        with self._guard:
            self._flying -= 1
            last = self._flying == 0
        if last:
            self._land()

    def _land(self) -> None:
        download = self._download
        # a reset while other connections were done already leaves them something to do again
        self._fetch_spans()
        os.ftruncate(download.descriptor, download.file.size)
        if not is_right(download.part, download.file):
            self._again()
        os.fsync(download.descriptor)
        download.close()
        self._place.parent.mkdir(parents=True, exist_ok=True)
        download.part.replace(self._place)
        download.progress.path.unlink(missing_ok=True)

    def _fetch_spans(self) -> None:
        for span in self._download.progress.spans:
            self._download.run(span)

    def _again(self) -> None:
        """Wrong bytes arrived somewhere on the way: once more from the start, and then it is the hub's fault."""
        download = self._download
        download.begin_again()
        self._fetch_spans()
        if not is_right(download.part, download.file):
            download.progress.reset()
            download.progress.save()
            raise DownloadFailed(
                f"{download.name} arrived twice with another content than the hub states",
                hint="something in between changes it: another mirror in HF_ENDPOINT, or no proxy",
            )


def _from_cache(source: Source, model: LockedModel, file: LockedFile, directory: Path) -> bool:
    """Take a file over from the hub client's own cache, where it is whole: by link on one disk, else as a copy."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(model.repo, file.path, revision=model.commit)
    return isinstance(found, str) and take_over(Path(found), file, directory)


def take_over(found: Path, file: LockedFile, directory: Path) -> bool:
    """Take a file that lies elsewhere on this machine, if it is right: by link on one disk, else as a copy."""
    if not is_right(found, file):
        return False
    place, staged = directory / file.path, directory / STAGING / f"{file.path.replace('/', '%')}.copy"
    with writing(directory):
        staged.parent.mkdir(parents=True, exist_ok=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        staged.unlink(missing_ok=True)
        link_or_copy(found, staged)
        staged.replace(place)
    return True


class _Known:
    """Files that were found right before, by size and time of change: 20 GB need not be read at every `up`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = directory / ".dflash-verified.json"
        try:
            read = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            read = {}
        self._known: dict[str, object] = read if isinstance(read, dict) else {}

    def is_right(self, file: LockedFile) -> bool:
        """Whether the file is as the lock says, looked up or read."""
        stamp = self._stamp(file)
        if stamp is None:
            return False
        return self._known.get(file.path) == stamp or is_right(self._directory / file.path, file)

    def remember(self, files: tuple[LockedFile, ...]) -> None:
        """Write down that these are right."""
        stamps = {**self._known, **{file.path: self._stamp(file) for file in files}}
        with contextlib.suppress(OSError):
            write_atomically(self._file, json.dumps(stamps), mode=PUBLIC)

    def _stamp(self, file: LockedFile) -> list[object] | None:
        try:
            status = (self._directory / file.path).stat()
        except OSError:
            return None
        if status.st_size != file.size:
            return None
        return [status.st_size, status.st_mtime_ns, file.sha256 or file.blob]
