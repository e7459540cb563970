"""One command at a time per deployment directory."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from dflash_deploy.errors import DirectoryBusy
from dflash_deploy.project.deployment import Deployment


@contextmanager
def hold(deployment: Deployment, command: str) -> Iterator[None]:
    """Hold the directory's lock, which the system drops when this process ends, however it ends.

    Raises DirectoryBusy, saying who holds it since when.
    """
    descriptor = os.open(deployment.make_state() / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "r+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DirectoryBusy(
                f"another command works on {deployment.directory}: {file.read().strip() or 'unknown'}",
                hint="wait for it, or end it; `dflash-deploy status` may be used meanwhile",
            ) from None
        file.truncate(0)
        file.write(f"{command}, process {os.getpid()}, since {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC")
        file.flush()
        yield
        file.seek(0)
        file.truncate(0)
