"""The log of a supervised process: written in parts, and read page by page in bounded memory.

Earlier parts are beside the file that the process writes to, with numbers: `engine.log.1` is the newest of them. A part
that continues the one before says so in its first line, with the bytes that this start of the process wrote before. So
a place in the log of one start is a number of bytes, and a reader finds it again after parts were renamed.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from dflash_deploy.deployment.files import PRIVATE
from dflash_deploy.errors import FileInvalid, FileMissing, FileRefused
from dflash_deploy.intake.files import MIB, open_file, reading
from dflash_deploy.runtime.protocol import LogPage, last_state

PART = 32 * MIB  # bytes after which a log is continued in a new file
EARLIER = 3  # earlier parts that are kept, of this start and of those before
_AGAIN = MIB  # bytes after which it tries again to begin a part, for example on a full disk
_MARK = "[this continues the log of the same start, after {} bytes]\n"
_CONTINUES = re.compile(re.escape(_MARK).replace(r"\{\}", r"(\d{1,15})").encode())
_LONGEST_MARK = len(_MARK) + 15


class PartedLog:
    """A log that is written by one process, line by line."""

    def __init__(self, log: Path) -> None:
        """Raises OSError if the log cannot be opened."""
        self._log = log
        self._limit = PART
        self._file = os.open(log, os.O_RDWR | os.O_CREAT | os.O_APPEND, PRIVATE)
        self._size = os.fstat(self._file).st_size

    def write(self, line: bytes) -> None:
        """Write a line, and first begin another part if this one is full. Raises OSError, for example on a full disk.

        Nothing is kept to be written later: a line that fails is lost.
        """
        if self._size >= self._limit:
            self._limit = PART if self._continue() else self._size + _AGAIN
        self._size += os.write(self._file, line)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _continue(self) -> bool:
        """Begin another part; return whether that worked. It is complete before it gets the log's name."""
        place = _place(self._file)
        mark, fresh = _MARK.format(place.end).encode(), self._log.with_name(f"{self._log.name}.next")
        try:
            fresh.unlink(missing_ok=True)
            file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, PRIVATE)
        except OSError:
            return False
        try:
            if os.write(file, mark) < len(mark):
                raise OSError("the disk is full")
            shift(self._log)
            fresh.replace(self._log)
        except OSError:
            os.close(file)
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
            return False
        with contextlib.suppress(OSError):
            if os.path.sameopenfile(2, self._file):
                # what the supervisor itself says
                os.dup2(file, 2)
        os.close(self._file)
        self._file, self._size = file, len(mark)
        return True


def shift(log: Path) -> None:
    """Rename a log and its earlier parts to their next numbers. The oldest is gone."""
    for number in range(EARLIER - 1, -1, -1):
        with contextlib.suppress(FileNotFoundError):
            _numbered(log, number).replace(_numbered(log, number + 1))


def previous_start(log: Path) -> Path:
    """The last part of the start before the present one. It does not exist if all parts are of the present start."""
    number = 0
    with contextlib.suppress(FileRefused):
        while number < EARLIER and _place_in(_numbered(log, number)).before:
            number += 1
    return _numbered(log, number + 1)


@dataclass(frozen=True)
class Text:
    """The log of one start, in parts without their marks: from `first` to `end`, in bytes since its beginning."""

    parts: tuple[tuple[BinaryIO, _Place], ...]

    @property
    def first(self) -> int:
        """Where it begins: more than 0 if earlier parts are gone, or were not asked for."""
        return self.parts[0][1].before

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.parts[-1][1].end

    def read(self, start: int, length: int) -> bytes:
        """Return at most `length` bytes from `start` on."""
        found = bytearray()
        for file, place in self.parts:
            at = start + len(found)
            left = min(length - len(found), place.end - at)
            if place.before <= at and left > 0:
                file.seek(at - place.before + place.mark)
                found += file.read(left)
        return bytes(found)


@contextmanager
def text_since(log: Path, start: int) -> Iterator[Text]:
    """Yield the log of the present start with the parts that `start` needs, as far as they are left.

    All of it if the log ends before `start`, which is of an earlier one then. Raises FileRefused if the newest part
    cannot be read.
    """
    with ExitStack() as opened:
        newest = opened.enter_context(open_file(log))
        found = [(newest, _place(newest.fileno()))]
        start = start if start <= found[0][1].end else 0
        part = re.search(r"\.log\.(\d)$", log.name)
        for number in range((int(part[1]) if part else 0) + 1, EARLIER + 1):
            next_before = found[0][1].before
            if next_before <= start:
                break
            try:
                file = opened.enter_context(open_file(_numbered(log, number)))
            except FileRefused:
                break
            place = _place(file.fileno())
            if place.before >= next_before:
                # it was renamed since it was opened
                continue
            if place.end != next_before:
                # of another start
                break
            found.insert(0, (file, place))
        yield Text(tuple(found))


@dataclass(frozen=True)
class _Place:
    """Bytes of the same start before a part, bytes of its mark, and where it ends."""

    before: int
    mark: int
    end: int


def _place(file: int) -> _Place:
    marked = _CONTINUES.match(os.pread(file, _LONGEST_MARK, 0))
    before, mark = (int(marked[1]), marked.end()) if marked else (0, 0)
    return _Place(before, mark, before + os.fstat(file).st_size - mark)


def _place_in(part: Path) -> _Place:
    with open_file(part) as file:
        return _place(file.fileno())


def _numbered(log: Path, number: int) -> Path:
    """An earlier part; the log itself for 0. `log` may be an earlier part too."""
    name = re.sub(r"(?<=\.log)\.\d$", "", log.name)
    return log.with_name(f"{name}.{number}" if number else name)


HEAD = 4 * MIB
TAIL = 12 * MIB  # bytes that one page has of a longer log: a start writes less than HEAD, and a failure is at the end


def read_page(log: Path, cursor: str, redact: Callable[[str], str]) -> LogPage:
    """Return the complete lines after `cursor`, in bytes since the process was started, without secrets.

    If there are more than HEAD + TAIL bytes, the lines between are replaced by one that says so, as are those of parts
    that were removed. A log that is missing has no lines. Raises FileRefused if this user may not read it.
    """
    start = int(cursor or 0)
    try:
        with reading(log), text_since(log, start) as text:
            return _page(log, text, start if start <= text.end else 0, redact)
    except FileMissing:
        return LogPage((), cursor)
    except FileInvalid as problem:
        return LogPage(() if cursor else (problem.message,), cursor or "0")


def _page(log: Path, text: Text, start: int, redact: Callable[[str], str]) -> LogPage:
    gone = max(0, text.first - start)
    removed = (f"[{gone / MIB:.1f} MiB of the log before this were removed]",) if gone else ()
    start += gone
    if text.end - start <= HEAD + TAIL:
        content = _whole_lines(text.read(start, HEAD + TAIL))
        return LogPage((*removed, *_lines(content, redact)), str(start + len(content)))
    head = text.read(start, HEAD)
    head = _whole_lines(head) or head
    begin = text.end - TAIL
    tail = _whole_lines(text.read(begin, TAIL))
    cut = tail.find(b"\n") + 1
    left_out, files = (begin + cut - start - len(head)) / MIB, f"{log}{'*' if len(text.parts) > 1 else ''}"
    between = f"[{left_out:.1f} MiB of the log are not shown here; all of it is in {files}]"
    shown = (*_lines(head, redact), between, *_lines(tail[cut:], redact))
    return LogPage((*removed, *shown), str(begin + len(tail)))


def shortened(chunks: Iterable[bytes]) -> bytes:
    """Return a container's log, whose lines begin with a time stamp, from its chunks.

    If it has more than HEAD + TAIL bytes, the lines between are replaced by one that says so, and never kept.
    """
    head, tail, total = bytearray(), bytearray(), 0
    for chunk in chunks:
        room = HEAD - len(head)
        head += chunk[:room]
        tail += chunk[room:]
        total += len(chunk)
        if len(tail) > 2 * TAIL:
            del tail[:-TAIL]
    if total <= HEAD + TAIL:
        return bytes(head + tail)
    beginning, end = _whole_lines(bytes(head)), bytes(tail[-TAIL:])
    end = end[end.find(b"\n") + 1 :]
    stamp = beginning[beginning.rfind(b"\n", 0, -1) + 1 :].partition(b" ")[0]
    left_out = (total - len(beginning) - len(end)) / MIB
    said = f" [{left_out:.1f} MiB of the log are not shown here; `docker logs` has all of it]\n"
    return beginning + stamp + said.encode() + end


def _whole_lines(content: bytes) -> bytes:
    return content[: content.rfind(b"\n") + 1]


def _lines(content: bytes, redact: Callable[[str], str]) -> tuple[str, ...]:
    text = redact(content.decode("utf-8", "replace"))
    return tuple(last_state(line) for line in text.removesuffix("\n").split("\n")) if text else ()
