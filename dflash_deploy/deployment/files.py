"""Writing files so that nobody ever sees half of one."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

PRIVATE = 0o600
PUBLIC = 0o644


def write_atomically(path: Path, text: str, *, mode: int) -> None:
    """Write beside `path` and rename. The file has its mode from the first byte on; a failure leaves the old one.

    A file that is there keeps its owner, also where root writes for somebody. A container that has `path` mounted keeps
    the old content until it is started anew.
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
    """Give a new file to the owner of the one that it replaces, which only root may do."""
    if os.geteuid() == 0:
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            os.fchown(descriptor, status.st_uid, status.st_gid)


def write_if_changed(path: Path, text: str, *, mode: int) -> bool:
    """Write unless the file already says so; tells whether it was written."""
    with contextlib.suppress(FileNotFoundError):
        if path.read_text(encoding="utf-8") == text:
            return False
    write_atomically(path, text, mode=mode)
    return True
