"""One command at a time per deployment directory."""

from __future__ import annotations

import fcntl
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import PRIVATE
from dflash_deploy.errors import DirectoryBusy, PreflightRefused


@contextmanager
def hold(deployment: Deployment, command: str) -> Iterator[None]:
    """Hold the directory's lock, which the system drops when this process ends, however it ends.

    It is the first thing that a command writes. Raises DirectoryBusy, saying who holds it since when, and
    PreflightRefused where nothing can be written, as on a full disk.
    """
    with _opened(deployment) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DirectoryBusy(
                f"another command works on {deployment.directory}: {file.read().decode().strip() or 'unknown'}",
                hint="wait for it, or end it; `dflash-deploy status` may be used meanwhile",
            ) from None
        file.truncate(0)
        try:
            file.write(f"{command}, process {os.getpid()}, since {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC".encode())
        except OSError as problem:
            raise _not_writable(deployment, problem) from None
        yield
        file.seek(0)
        file.truncate(0)


def _opened(deployment: Deployment) -> io.FileIO:
    try:
        descriptor = os.open(deployment.make_state() / "lock", os.O_RDWR | os.O_CREAT, PRIVATE)
    except OSError as problem:
        raise _not_writable(deployment, problem) from None
    # without a buffer: what a full disk refuses is not tried again when the file is closed
    return io.FileIO(descriptor, "r+")


def _not_writable(deployment: Deployment, problem: OSError) -> PreflightRefused:
    return PreflightRefused(
        f"{deployment.state} cannot be written: {problem.strerror}",
        hint="the state of the deployment is kept there: make room (`df -h`), or see who owns it (`ls -ld`)",
    )
