"""Free space on disk, also for a directory that does not exist yet."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DiskRoom:
    """The file system of a path: an existing directory on it, its device number, and its free bytes for this user."""

    directory: Path
    device: int
    free: int


def disk_room(path: Path) -> DiskRoom | None:
    """The file system of a path that exists or will exist; `None` if this user has no permission to read it."""
    for directory in (path, *path.parents):
        try:
            return DiskRoom(directory, directory.stat().st_dev, shutil.disk_usage(directory).free)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return None
    return None


def bytes_under(directory: Path) -> int:
    """The bytes of a file, or of all files under a directory. Links are followed; each file is counted once."""
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
