"""Files that the user names and a command writes: reports, figures, a bill of materials, a converted model."""

from __future__ import annotations

import errno
import glob
import os
import stat
from pathlib import Path

from dflash_deploy.deployment.files import PUBLIC, remove_leftovers, write_atomically
from dflash_deploy.errors import BadInput, PreflightRefused
from dflash_deploy.intake.files import shown

OWN = (".env", ".env.last", "compose.yaml", "compose.override.yaml", "dflash.lock")
"""Names of a deployment's own files. Commands do not write them because an option names them."""

STATE = ".dflash"
"""The directory of a deployment whose content is its own too."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says if a disk, a quota or a file is full."""


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
