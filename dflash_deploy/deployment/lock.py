"""The lock of a deployment directory: one command at a time."""

from __future__ import annotations

import fcntl
import glob
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from dflash_deploy.deployment.compose import remove_unused_contexts
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import FULL, OWN, PRIVATE, remove_leftovers
from dflash_deploy.deployment.keys import keys_file
from dflash_deploy.errors import DirectoryBusy, PreflightRefused
from dflash_deploy.intake.documents import set_aside

LONGEST_HOLDER = 200  # bytes of the lock file that are shown: the command that holds it


# Commands that end something, and need no room on the disk for it.
WAYS_OUT = ("down", "keys revoke")


@contextmanager
def command_lock(deployment: Deployment, command: str) -> Iterator[None]:
    """Hold the directory's lock. The system releases it when this process ends, even after a crash.

    It is the first file that a command writes. Raises DirectoryBusy with the command that holds it, and
    PreflightRefused if the file cannot be written, as on a full disk.
    """
    with _opened(deployment) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DirectoryBusy(
                f"{deployment.directory} is in use by another command: {_holder(file) or 'unknown'}",
                hint="wait until it ends, or stop it; `dflash-deploy status` works meanwhile",
            ) from None
        file.truncate(0)
        try:
            file.write(f"{command}, process {os.getpid()}, since {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC".encode())
        except OSError as problem:
            if command not in WAYS_OUT or problem.errno not in FULL:
                raise _not_writable(deployment, problem) from None
        _tidy(deployment)
        try:
            yield
        finally:
            # what a killed command leaves here says that it did not finish
            file.truncate(0)


@contextmanager
def locked(directory: Path, command: str, *, check: bool = True) -> Iterator[Deployment]:
    """Hold the lock of a deployment, and yield it as it is read then: another command may have changed it just before.

    Raises what `Deployment.existing` and `command_lock` raise.
    """
    with command_lock(Deployment.existing(directory, check=check), command):
        yield Deployment.existing(directory, check=check)


def _tidy(deployment: Deployment) -> None:
    """Remove what killed commands left: no other command writes now. The supervisor of an engine locks its files."""
    remove_leftovers(deployment.directory, *map(glob.escape, OWN))
    for state in (deployment.state, deployment.state / "door"):
        remove_leftovers(state, "*")
    remove_leftovers(keys_file(deployment).parent, keys_file(deployment).name)
    remove_unused_contexts(deployment.state)


def _holder(file: io.FileIO) -> str:
    return file.read(LONGEST_HOLDER).decode("utf-8", "replace").strip()


def _opened(deployment: Deployment) -> io.FileIO:
    try:
        lock = deployment.make_state() / "lock"
        # what a link leads to would be overwritten
        if lock.is_symlink() or (lock.exists() and not lock.is_file()):
            set_aside(lock, f"{lock} is not a regular file")
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, PRIVATE)
    except OSError as problem:
        raise _not_writable(deployment, problem) from None
    # unbuffered: a write that fails on a full disk is not repeated on close
    return io.FileIO(descriptor, "r+")


def _not_writable(deployment: Deployment, problem: OSError) -> PreflightRefused:
    return PreflightRefused(
        f"{deployment.state} cannot be written: {problem.strerror}",
        hint="the state of the deployment is stored there: free disk space (`df -h`), or check the owner (`ls -ld`)",
    )
