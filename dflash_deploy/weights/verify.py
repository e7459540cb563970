"""Verify files against the lock: by digest, and by known kinds of damage."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dflash_deploy.intake.files import open_file, reading
from dflash_deploy.weights.check import content_problem
from dflash_deploy.weights.lockfile import LockedFile, LockedModel

BLOCK = 8 * 2**20


def digest_of(path: Path, file: LockedFile) -> str:
    """Return the file's digest of the kind in the lock: sha256, or git's object id."""
    if file.sha256:
        digest = hashlib.sha256()
    else:
        # git's object id: "blob", the length, a zero byte, the content
        digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with open_file(path) as content, reading(path):
        block = bytearray(BLOCK)
        view = memoryview(block)
        while count := content.readinto(view):
            digest.update(view[:count])
    return digest.hexdigest()


def is_right(path: Path, file: LockedFile) -> bool:
    """Return whether size and digest match the lock; only the size if the lock has no digest."""
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    expected = file.sha256 or file.blob
    return expected is None or digest_of(path, file) == expected


def problem_of(path: Path, file: LockedFile) -> str:
    """Return what is wrong with a file, as text after its name; empty if nothing is."""
    if not path.is_file():
        return "is not a file" if path.exists() else "is missing"
    if (file.sha256 or file.blob) and is_right(path, file):
        return ""
    size = path.stat().st_size
    if size == 0 and file.size:
        return "is empty"
    if found := content_problem(path):
        return found
    if size != file.size:
        return f"has {size} bytes instead of {file.size}"
    return "has another checksum than in dflash.lock" if file.sha256 or file.blob else ""


def verify(directory: Path, model: LockedModel, *, workers: int = 2) -> Iterator[tuple[LockedFile, str]]:
    """Yield each file and what is wrong with it; hashing runs in `workers` threads."""
    with ThreadPoolExecutor(workers) as pool:
        largest_first = sorted(model.files, key=lambda file: -file.size)
        yield from zip(
            largest_first, pool.map(lambda file: problem_of(directory / file.path, file), largest_first), strict=True
        )
