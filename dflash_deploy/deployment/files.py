"""Write files atomically."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from dflash_deploy.errors import FileRefused
from dflash_deploy.intake import read_bytes

PRIVATE = 0o600
PUBLIC = 0o644


def write_atomically(path: Path, text: str, *, mode: int) -> None:
    """Write a temporary file with `mode` beside `path` and rename it. A failure leaves the old file.

    The owner of an existing file is kept, also if root writes. A container that mounts `path` sees the old content
    until it restarts.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            _keep_owner(descriptor, path)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise


def _keep_owner(descriptor: int, path: Path) -> None:
    """As root, give a new file to the owner of the file that it replaces."""
    if os.geteuid() == 0:
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            os.fchown(descriptor, status.st_uid, status.st_gid)


def write_if_changed(path: Path, text: str, *, mode: int) -> bool:
    """Write the file if its text differs; return whether it was written."""
    content = text.encode()
    with contextlib.suppress(FileRefused):
        if read_bytes(path, limit=len(content)) == content:
            return False
    write_atomically(path, text, mode=mode)
    return True
