"""Reads the log of a supervised process page by page, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from dflash_deploy.errors import FileInvalid, FileMissing
from dflash_deploy.intake import MIB
from dflash_deploy.intake.files import reading
from dflash_deploy.runtime.log_parts import Text, text_since
from dflash_deploy.runtime.protocol import LogPage, last_state

HEAD = 4 * MIB
TAIL = 12 * MIB
"""Bytes that one page has of a longer log: a start writes less than HEAD, and a failure is at the end."""


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
