"""Writes files atomically and durably: after a power cut a file has its old or its new content.

A file grows under a temporary name, `.NAME.` and eight hexadecimal digits, which its writer locks. A writer that is
killed leaves that file without a lock, so `remove_leftovers` can tell it from the file of a writer that still runs. The
files belong to a deployment, or the user names them: reports, figures, a bill of materials, a converted model. A tar.gz
is readable only by its owner.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import io
import os
import secrets
import stat
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from dflash_deploy.errors import BadInput, FileRefused, PreflightRefused
from dflash_deploy.intake.files import read_bytes, shown

PRIVATE = 0o600
PUBLIC = 0o644

_DIGITS = "[0-9a-f]" * 8


def write_atomically(path: Path, text: str, *, mode: int) -> None:
    """Write a temporary file with `mode` beside `path` and rename it. A failure leaves the old file.

    On a full disk, a text that is not longer than the old one is written over it: a key can be revoked there. The
    owner of an existing file is kept, also if root writes. A container that mounts `path` sees the old content until it
    restarts.
    """
    content = text.encode()
    try:
        with _temporary(path, mode) as (file, temporary):
            _keep_owner(file.fileno(), path)
            file.write(content)
            _to_disk(file)
            temporary.replace(path)
    except OSError as problem:
        if problem.errno not in (errno.ENOSPC, errno.EDQUOT) or not _written_over(path, content):
            raise
    sync_directory(path.parent)


def _written_over(path: Path, content: bytes) -> bool:
    """Whether a file could be overwritten in the space that it has."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_NOFOLLOW), "wb", buffering=0) as file:
            if not 0 < len(content) <= os.fstat(file.fileno()).st_size:
                return False
            file.write(content)
            file.truncate()
            os.fsync(file.fileno())
    except OSError:
        return False
    return True


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


LOCK_FILE = "dflash.lock"  # the commits of the weights, beside `.env`

# Names of a deployment's own files. Commands do not write them because an option names them.
OWN = (".env", ".env.last", "compose.yaml", "compose.override.yaml", LOCK_FILE)

STATE = ".dflash"  # the directory of a deployment whose content is its own too
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # what the system says if a disk, a quota or a file is full


def check_output(path: Path) -> Path:
    """Return the file that writing `path` replaces or creates: behind a symbolic link, the file that it names.

    Raises BadInput if it belongs to a deployment, is not a regular file, or its directory is missing or not writable.
    """
    try:
        target = path.resolve()
        folder = target.parent
        if target.name in OWN or STATE in target.parts:
            raise _refused(path, "it is a file of a deployment", "choose another file name")
        if path.is_symlink() and not target.exists():
            raise _refused(path, "it is a symbolic link to a missing file", "remove the link")
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            raise _refused(path, "it is not a regular file", "name a new or a regular file")
        if not folder.is_dir():
            raise _refused(path, f"{shown(folder)} does not exist", "create the directory first")
        if not os.access(folder, os.W_OK):
            raise _refused(path, f"no permission to write in {shown(folder)}", "choose another directory")
    # a loop of links is a RuntimeError in older Pythons, a NUL byte a ValueError
    except (OSError, RuntimeError, ValueError) as problem:
        raise _refused(path, getattr(problem, "strerror", None) or str(problem), "choose another file name") from None
    return target


def write_output(path: Path, text: str) -> None:
    """Write a file that the user named: all of it, or nothing. An existing file keeps its mode, a new one is public.

    Raises BadInput as `check_output` does, and PreflightRefused if the disk is full.
    """
    target = check_output(path)
    remove_leftovers(target.parent, glob.escape(target.name))
    try:
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else PUBLIC
        write_atomically(target, text, mode=mode)
    except OSError as problem:
        raise not_written(path, problem) from None


def not_written(path: Path, problem: OSError) -> BadInput | PreflightRefused:
    """Return the error for a file that the system could not write."""
    said = f"{shown(path)} cannot be written: {problem.strerror or problem}"
    if problem.errno in FULL:
        return PreflightRefused(said, hint="free disk space (`df -h`), then run the command again")
    return BadInput(said, hint="choose another directory")


def _refused(path: Path, why: str, hint: str) -> BadInput:
    return BadInput(f"{shown(path)} cannot be written: {why}", hint=hint)


def write_archive(path: Path, members: Mapping[str, str], *, names: str = "") -> None:
    """Write a tar.gz with one folder of texts, created with mode 0600. A failure leaves no file, and a kill neither.

    What a killed writer of `path` left is removed first; also of a file whose name matches the glob pattern `names`.
    Raises BadInput if the file exists or cannot be written, PreflightRefused if the disk is full.
    """
    # an existing file is refused below, whatever it is
    if not os.path.lexists(path):
        check_output(path)
    remove_leftovers(path.parent, glob.escape(path.name), *filter(None, [names]))
    try:
        if os.path.lexists(path):
            raise FileExistsError
        with new_file(path, mode=PRIVATE) as file:
            _fill(file, path.name.removesuffix(".gz").removesuffix(".tar"), members)
    except FileExistsError:
        raise BadInput(f"{path} already exists", hint="choose another file name") from None
    except OSError as problem:
        raise not_written(path, problem) from None


def _fill(file: BinaryIO, folder: str, members: Mapping[str, str]) -> None:
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, text in members.items():
            content = text.encode("utf-8", "replace")
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mode, member.mtime = len(content), PRIVATE, int(time.time())
            archive.addfile(member, io.BytesIO(content))
