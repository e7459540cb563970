"""What a file of the hub holds: bytes, a file on disk, or a stretch that is made while it is sent."""

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

BLOCK = 1 << 20  # bytes that are handed over at once

# How far the window of a generated block moves from one block to the next; odd, so that 2^20 blocks differ.
_STRIDE = 4099


class Content(Protocol):
    """The bytes of one file."""

    @property
    def size(self) -> int:
        """Bytes in all."""

    def pieces(self, start: int, stop: int) -> Iterator[memoryview]:
        """The bytes from `start` to `stop`, exclusive, in pieces of at most `BLOCK`."""


@dataclass(frozen=True)
class Held:
    """Bytes in memory."""

    data: bytes

    @property
    def size(self) -> int:
        """Bytes in all."""
        return len(self.data)

    def pieces(self, start: int, stop: int) -> Iterator[memoryview]:
        """The bytes from `start` to `stop`, exclusive."""
        view = memoryview(self.data)
        for at in range(start, stop, BLOCK):
            yield view[at : min(at + BLOCK, stop)]


@dataclass(frozen=True)
class OnDisk:
    """A file on disk, which the server hands to the kernel without reading it."""

    path: Path

    @property
    def size(self) -> int:
        """Bytes in all."""
        return self.path.stat().st_size

    def pieces(self, start: int, stop: int) -> Iterator[memoryview]:
        """The bytes from `start` to `stop`, exclusive."""
        with self.path.open("rb") as file:
            file.seek(start)
            for at in range(start, stop, BLOCK):
                yield memoryview(file.read(min(BLOCK, stop - at)))


@dataclass(frozen=True)
class Generated:
    """Bytes that follow from a seed, for files that are too big to keep. No two blocks of a file are alike."""

    size: int
    seed: int = 0

    @cached_property
    def _twice(self) -> memoryview:
        block = random.Random(self.seed).randbytes(BLOCK)
        return memoryview(block + block)

    def pieces(self, start: int, stop: int) -> Iterator[memoryview]:
        """The bytes from `start` to `stop`, exclusive."""
        at = start
        while at < stop:
            number, within = divmod(at, BLOCK)
            upto = min(stop, (number + 1) * BLOCK)
            offset = number * _STRIDE % BLOCK
            yield self._twice[offset + within : offset + within + upto - at]
            at = upto


@dataclass(frozen=True)
class Flipped:
    """Another content with one byte inverted: right in length, wrong in value."""

    of: Content
    at: int

    @property
    def size(self) -> int:
        """Bytes in all."""
        return self.of.size

    def pieces(self, start: int, stop: int) -> Iterator[memoryview]:
        """The bytes from `start` to `stop`, exclusive."""
        for piece in self.of.pieces(start, stop):
            end = start + len(piece)
            if start <= self.at < end:
                wrong = bytearray(piece)
                wrong[self.at - start] ^= 0xFF
                yield memoryview(wrong)
            else:
                yield piece
            start = end


def content_of(source: "bytes | str | Path | Content") -> Content:
    """The content that a test means: bytes and text as they are, a path as the file there."""
    if isinstance(source, bytes):
        return Held(source)
    if isinstance(source, str):
        return Held(source.encode())
    if isinstance(source, Path):
        return OnDisk(source)
    return source


def read(content: Content, start: int = 0, stop: int | None = None) -> bytes:
    """The bytes themselves. For small files."""
    return b"".join(content.pieces(start, content.size if stop is None else stop))


def sha256_of(content: Content) -> str:
    """The sha256 in hex."""
    digest = hashlib.sha256()
    for piece in content.pieces(0, content.size):
        digest.update(piece)
    return digest.hexdigest()


def blob_id(content: Content) -> str:
    """The id that git gives a blob: the sha1 of a header and the bytes."""
    digest = hashlib.sha1(f"blob {content.size}\0".encode(), usedforsecurity=False)
    for piece in content.pieces(0, content.size):
        digest.update(piece)
    return digest.hexdigest()
