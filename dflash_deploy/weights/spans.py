"""Progress of a partial file: spans of bytes, each filled from its start, saved beside the part file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dflash_deploy.deployment.files import PUBLIC, write_atomically
from dflash_deploy.errors import FileRefused
from dflash_deploy.intake import Invalid, read_bytes
from dflash_deploy.intake.documents import PartRecord, parse_document
from dflash_deploy.weights.lockfile import LockedFile

SPLIT_ABOVE = 64 * 2**20
"""Bytes above which one file is downloaded over several connections."""

CONNECTIONS = 4


@dataclass
class Span:
    """Bytes `start` to `end` (exclusive) of a file, of which those before `done` are on disk."""

    start: int
    done: int
    end: int

    @property
    def left(self) -> int:
        """Bytes that are missing."""
        return self.end - self.done


@dataclass
class FileProgress:
    """The state of one part file. `etag` is the ETag of the response that its bytes came from."""

    size: int
    identity: str
    spans: list[Span]
    etag: str = ""
    path: Path = field(default_factory=Path)

    @property
    def done(self) -> int:
        """Bytes on disk."""
        return sum(span.done - span.start for span in self.spans)

    def reset(self) -> None:
        """Discard all bytes on disk."""
        self.etag = ""
        for span in self.spans:
            span.done = span.start

    def save(self) -> None:
        """Save the progress. Bytes are written before it, so that it never claims missing bytes."""
        spans = [[span.start, span.done, span.end] for span in self.spans]
        document = {"size": self.size, "identity": self.identity, "etag": self.etag, "spans": spans}
        write_atomically(self.path, json.dumps(document), mode=PUBLIC)


def identity_of(file: LockedFile) -> str:
    """Return the digest of the file's content; empty if the lock has none."""
    return file.sha256 or file.blob or ""


def open_progress(path: Path, part: Path, file: LockedFile) -> FileProgress:
    """Return the progress of an earlier run if it belongs to this file and its bytes exist, else a new one."""
    fresh = FileProgress(file.size, identity_of(file), list(_split(file.size)), path=path)
    try:
        record = parse_document(read_bytes(path, links=False), PartRecord)
        there = part.stat(follow_symlinks=False).st_size
    except (FileRefused, Invalid, OSError):
        return fresh
    spans = [Span(start, done, end) for start, done, end in record.spans]
    same = record.size == file.size and record.identity == fresh.identity
    if same and _cover(spans, file.size) and all(_is_sound(span, there) for span in spans):
        return FileProgress(file.size, fresh.identity, spans, record.etag, path)
    return fresh


def _cover(spans: list[Span], size: int) -> bool:
    """Return whether the spans cover byte 0 to `size` without gap and overlap."""
    expected = 0
    for span in spans:
        if span.start != expected:
            return False
        expected = span.end
    return expected == size


def _is_sound(span: Span, there: int) -> bool:
    """Return whether a span's done bytes are inside the span and inside a part file of `there` bytes."""
    return span.start <= span.done <= span.end and span.done <= max(there, span.start)


def _split(size: int) -> Iterator[Span]:
    count = CONNECTIONS if size > SPLIT_ABOVE else 1
    step = -(-size // count) if size else 0
    for number in range(count):
        start, end = min(number * step, size), min((number + 1) * step, size)
        yield Span(start, start, end)
