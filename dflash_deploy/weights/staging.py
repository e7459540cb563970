"""The directory of partial downloads: `.pull/` beside the files, with a lock and a check of free disk space."""

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
from dflash_deploy.intake.answers import new_client
from dflash_deploy.plan.memory import GIB
from dflash_deploy.serve.settings import Settings
from dflash_deploy.weights.lockfile import LockedFile, LockedModel
from dflash_deploy.weights.transfer import PATIENCE

WORKERS = 8
STAGING = ".pull"
LOCK = "lock"
SPARE = 256 * 2**20
"""Bytes that a download leaves free on the disk."""

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


def part_files(staging: Path, file: LockedFile) -> tuple[Path, Path]:
    """Return the paths of a file's progress and of its part file."""
    name = file.path.replace("/", "%")
    return staging / f"{name}.json", staging / f"{name}.part"


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


def download_client(*, direct: bool = False) -> httpx.Client:
    """Return an HTTP client for all connections of one download; `direct`: without the proxy of the environment.

    Raises SettingsRefused for an unusable proxy.
    """
    limits = httpx.Limits(max_connections=2 * WORKERS, max_keepalive_connections=2 * WORKERS)
    return new_client(timeout=httpx.Timeout(PATIENCE, connect=15.0), limits=limits, trust_env=not direct)
