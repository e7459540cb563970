"""Where a download grows: `.pull/` beside the files, held against a second run, on a disk that has room for it."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from dflash_deploy.errors import DirectoryBusy, NoRoom
from dflash_deploy.host.disk import disk_room
from dflash_deploy.serve.settings import Settings
from dflash_deploy.weights.lockfile import LockedFile, LockedModel
from dflash_deploy.weights.transfer import PATIENCE

WORKERS = 8
STAGING = ".pull"
LOCK = "lock"
SPARE = 256 * 2**20
"""Bytes that stay free for everybody else."""

_WHERE = f"--models-dir at init, {Settings.model_host_path}"

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """What the system says to writing becomes an error that names the directory."""
    try:
        yield
    except OSError as problem:
        if problem.errno in _FULL:
            raise NoRoom(f"the disk of {directory} is full", hint="make room; `dflash-deploy pull` goes on") from None
        if problem.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
            raise NoRoom(
                f"{directory} cannot be written: {problem.strerror}",
                hint=f"become its owner, or choose another directory ({_WHERE})",
            ) from None
        raise


@contextmanager
def staging_of(directory: Path) -> Iterator[Path]:
    """The directory of what is on its way, held against a second run. Raises DirectoryBusy."""
    staging = directory / STAGING
    staging.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(staging / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield staging
    except BlockingIOError:
        raise DirectoryBusy(
            f"another command fetches into {directory}", hint="wait for it: it fetches the same"
        ) from None
    finally:
        os.close(descriptor)


def places(staging: Path, file: LockedFile) -> tuple[Path, Path]:
    """Where a file's progress is written down, and where its bytes grow."""
    name = file.path.replace("/", "%")
    return staging / f"{name}.json", staging / f"{name}.part"


def link_or_copy(found: Path, place: Path) -> None:
    """The same file at another place: by hard link on one disk, else as a copy.

    Of the file itself: a link to a link leads nowhere in a container.
    """
    real = found.resolve()
    try:
        os.link(real, place)
    except OSError:
        shutil.copyfile(real, place)


def check_room(directory: Path, left: int, model: LockedModel) -> None:
    """Raises NoRoom where `left` more bytes do not go on the disk of a directory."""
    room = disk_room(directory)
    free = room.free if room is not None else 0
    if left and room is not None and left + SPARE > free:
        raise NoRoom(
            f"{model.repo} needs {left / 2**30:.1f} GiB more in {directory}, and {free / 2**30:.1f} GiB are free",
            hint=f"make room, or choose a directory on another disk ({_WHERE})",
        )


def new_client() -> httpx.Client:
    """A client for all connections of one download."""
    limits = httpx.Limits(max_connections=2 * WORKERS, max_keepalive_connections=2 * WORKERS)
    return httpx.Client(timeout=httpx.Timeout(PATIENCE, connect=15.0), limits=limits)
