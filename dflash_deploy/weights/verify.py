"""Is a file what the lock says? By content, and by what people have found in weight files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dflash_deploy.weights.check import content_problem
from dflash_deploy.weights.lockfile import LockedFile, LockedModel

BLOCK = 8 * 2**20


def digest_of(path: Path, file: LockedFile) -> str:
    """The digest by which the lock knows this file: sha256, or git's for a blob."""
    if file.sha256:
        digest = hashlib.sha256()
    else:
        # git's object id: "blob", the length, a zero byte, the content
        digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb", buffering=0) as content:
        block = bytearray(BLOCK)
        view = memoryview(block)
        while count := content.readinto(view):
            digest.update(view[:count])
    return digest.hexdigest()


def is_right(path: Path, file: LockedFile) -> bool:
    """Whether the content is the locked one. A lock that knows no digest is held to the size."""
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    expected = file.sha256 or file.blob
    return expected is None or digest_of(path, file) == expected


def problem_of(path: Path, file: LockedFile) -> str:
    """What is wrong with a file, as people would say it; empty where nothing is."""
    if not path.exists():
        return "is missing"
    if (file.sha256 or file.blob) and is_right(path, file):
        return ""
    size = path.stat().st_size
    if size == 0 and file.size:
        return "is empty"
    if found := content_problem(path):
        return found
    if size != file.size:
        return f"has {size} bytes instead of {file.size}"
    return "has another content than the lock says" if file.sha256 or file.blob else ""


def verify(directory: Path, model: LockedModel, *, workers: int = 2) -> Iterator[tuple[LockedFile, str]]:
    """Each file with what is wrong with it, as the checks end; hashing runs on several cores."""
    with ThreadPoolExecutor(workers) as pool:
        largest_first = sorted(model.files, key=lambda file: -file.size)
        yield from zip(
            largest_first, pool.map(lambda file: problem_of(directory / file.path, file), largest_first), strict=True
        )
