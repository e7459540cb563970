"""Is a file what the lock says? By content, and by what people have found in weight files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dflash_deploy.weights.check import POINTER
from dflash_deploy.weights.lockfile import LockedFile, LockedModel

BLOCK = 8 * 2**20
MOST_HEADER = 100 * 2**20
"""The longest header that the safetensors library reads."""


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
    if found := _foreign(path) or (_safetensors_problem(path, size) if path.suffix == ".safetensors" else ""):
        return found
    if size != file.size:
        return f"has {size} bytes instead of {file.size}"
    return "has another content than the lock says" if file.sha256 or file.blob else ""


def _foreign(path: Path) -> str:
    """Something that was saved in the place of the file."""
    with path.open("rb") as content:
        start = content.read(256)
    if start.startswith(POINTER):
        return "is a Git LFS pointer, not the weights"
    if start.lstrip().lower().startswith((b"<!doctype html", b"<html")) and path.suffix != ".html":
        return "is a web page that was saved in its place"
    return ""


def _safetensors_problem(path: Path, size: int) -> str:
    """A safetensors file says at its start how long it must be."""
    with path.open("rb") as content:
        length = int.from_bytes(content.read(8), "little")
        if length > min(size, MOST_HEADER):
            return "is no safetensors file, or cut off in its header"
        try:
            header = json.loads(content.read(length))
            ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            return "has a damaged header"
    needed = 8 + length + max(ends, default=0)
    return f"is cut off: its header asks for {needed} bytes, and there are {size}" if size < needed else ""


def verify(directory: Path, model: LockedModel, *, workers: int = 2) -> Iterator[tuple[LockedFile, str]]:
    """Each file with what is wrong with it, as the checks end; hashing runs on several cores."""
    with ThreadPoolExecutor(workers) as pool:
        largest_first = sorted(model.files, key=lambda file: -file.size)
        yield from zip(
            largest_first, pool.map(lambda file: problem_of(directory / file.path, file), largest_first), strict=True
        )
