"""Room on disk, also for a directory that is yet to be made."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DiskRoom:
    """The file system that a path lies on: one of its directories, its number, and its free bytes for this user."""

    directory: Path
    device: int
    free: int


def disk_room(path: Path) -> DiskRoom | None:
    """Where a path lies, or would lie, and how much room is there; `None` where this user may not look."""
    for directory in (path, *path.parents):
        try:
            return DiskRoom(directory, directory.stat().st_dev, shutil.disk_usage(directory).free)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return None
    return None


def bytes_under(directory: Path) -> int:
    """The bytes that a file or the files of a directory take; links count as what they lead to, once each."""
    if directory.is_file():
        return directory.stat().st_size
    sizes: dict[tuple[int, int], int] = {}
    for root, _, names in os.walk(directory, onerror=None):
        for name in names:
            try:
                status = (Path(root) / name).stat()
            except OSError:
                continue
            sizes[status.st_dev, status.st_ino] = status.st_size
    return sum(sizes.values())
