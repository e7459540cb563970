"""Write files atomically, and durably: after a power cut a file has its old or its new content.

A file grows under a temporary name, `.NAME.` and eight hexadecimal digits, which its writer locks. A writer that is
killed leaves that file without a lock, so `remove_leftovers` can tell it from the file of a writer that still runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from dflash_deploy.errors import FileRefused
from dflash_deploy.intake import read_bytes

PRIVATE = 0o600
PUBLIC = 0o644

_DIGITS = "[0-9a-f]" * 8


def write_atomically(path: Path, text: str, *, mode: int) -> None:
    """Write a temporary file with `mode` beside `path` and rename it. A failure leaves the old file.

    The owner of an existing file is kept, also if root writes. A container that mounts `path` sees the old content
    until it restarts.
    """
    content = text.encode()
    with _temporary(path, mode) as (file, temporary):
        _keep_owner(file.fileno(), path)
        file.write(content)
        _to_disk(file)
        temporary.replace(path)
    sync_directory(path.parent)


@contextmanager
def new_file(path: Path, *, mode: int) -> Iterator[BinaryIO]:
    """Yield a file that becomes `path` after the block, complete. A failure leaves no file.

    Raises FileExistsError if `path` exists, also if another program created it meanwhile.
    """
    with _temporary(path, mode) as (file, temporary):
        yield file
        _to_disk(file)
        _name_new(temporary, path)
    sync_directory(path.parent)


def replace_durably(staged: Path, path: Path) -> None:
    """Rename a file that has been written to its final name, in the same file system, once its bytes are on disk."""
    descriptor = os.open(staged, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    staged.replace(path)
    sync_directory(path.parent)


def copy_durably(source: Path, staged: Path, path: Path) -> None:
    """Copy a file to `path` by way of `staged`, which is created and is gone afterwards. A link is not followed."""
    staged.unlink(missing_ok=True)
    try:
        shutil.copyfile(source, staged)
        replace_durably(staged, path)
    finally:
        staged.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Write the names in a directory to disk: without that a power cut may undo a rename.

    What was renamed is not undone if it fails: a file system that cannot do it decides itself.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_leftovers(directory: Path, *names: str) -> None:
    """Remove the temporary files of writers that were killed, for files whose names match a glob pattern of `names`.

    Files that cannot be removed stay.
    """
    for name in names:
        for left in directory.glob(f".{name}.{_DIGITS}"):
            with contextlib.suppress(OSError):
                _remove_unlocked(left)


def _remove_unlocked(left: Path) -> None:
    descriptor = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()
    finally:
        os.close(descriptor)


@contextmanager
def _temporary(path: Path, mode: int) -> Iterator[tuple[BinaryIO, Path]]:
    """Yield a locked file beside `path`, open for writing. Afterwards its temporary name is gone."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            if not _locked(descriptor):
                continue
            try:
                yield file, temporary
            finally:
                with contextlib.suppress(FileNotFoundError):
                    temporary.unlink()
            return


def _locked(descriptor: int) -> bool:
    """Lock a new file; return whether it is still there: `remove_leftovers` may have found it without a lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # a file system without locks, where nothing is removed either
        return True
    return os.fstat(descriptor).st_nlink > 0


def _to_disk(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _name_new(temporary: Path, path: Path) -> None:
    """Give a file its name unless that exists. A rename would replace the file of another program."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:
        # a file system without hard links
        if os.path.lexists(path):
            raise FileExistsError(str(path)) from None
        temporary.rename(path)


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
