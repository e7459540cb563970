"""The key lines of a log with an unknown failure: the first exception and the errors, not the last twenty lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

LONGEST_LINE = 2000
"""Characters of a line that are searched. Printed configurations are longer; error messages are not."""

MOST_LINES = 12

MOST_REPORTS = 20_000
"""Distinct messages in which fingerprints are searched. A start writes hundreds; this many take two seconds."""

MOST_WORK = 4 * 10**8
"""Sum of the squared lengths of messages that are searched: one pattern takes at most a second or two for them."""

_LEVEL = r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d (?:\[[^\]]{0,80}\] ?)?"
_PREFIX = re.compile(rf"(?:\([^)]{{0,60}}\) ?)?(?:{_LEVEL}|\[\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]{{0,20}}\] ?)?")
"""Process, level, time and place before a message, as vLLM and SGLang write them; each may be missing."""

_RAISED = re.compile(r"(?!\s)[A-Za-z_][\w.]{0,120}(?:Error|Exception|Exit|Interrupt|Timeout|Fault)(?::|$)")
_TRACEBACK = "Traceback (most recent call last)"
_FRAME = re.compile(r"\s+File \"")
_ERROR = re.compile(r"\b(?:error|fatal|failed|failure|abort(?:ed)?|assert(?:ion)?|panic|killed|refused|cannot)\b", re.I)
_COUNTED = re.compile(r"0x[0-9a-f]+|\d+")

_ECHO = re.compile(r"[Ss]ee root cause above|[Ss]ee stack trace|^(?:WorkerProc|EngineCore) failed to start")
"""Messages of a process that only report that another process died."""


@dataclass(frozen=True)
class _LogLine:
    """A line of a log. `level` is empty if the line has none, as in output of libraries."""

    level: str
    message: str


def distinct_messages(lines: Iterable[str]) -> tuple[str, ...]:
    """Return each message above INFO once, without process, level, time and place.

    Only the last `MOST_REPORTS` messages are kept.
    """
    read = map(_split, lines)
    messages = dict.fromkeys(line.message for line in read if line.level not in {"DEBUG", "INFO"})
    return tuple(messages)[-MOST_REPORTS:]


def searchable(messages: Sequence[str]) -> tuple[str, ...]:
    """Return the messages, cut to a length at which they are searched in bounded time.

    The time of a search may grow with the square of a message. Only logs with thousands of long messages are cut.
    """
    longest = LONGEST_LINE
    while longest > 1 and sum(min(len(message), longest) ** 2 for message in messages) > MOST_WORK:
        longest //= 2
    return tuple(message[:longest] for message in messages)


def key_lines(lines: Sequence[str], most: int = MOST_LINES) -> tuple[str, ...]:
    """Return at most `most` lines, each once: the first traceback's frame and exception, other exceptions, errors.

    If there are none, return the last lines that are not empty.
    """
    read = [_split(line) for line in lines]
    said = [*_exceptions(read), *(line.message for line in read if _is_error(line))]
    causes = [message for message in said if not _ECHO.search(message)]
    told = _each_once([*_first_frame(read), *(causes or said)])
    if not told:
        told = [line.message for line in read if line.message.strip()][-most // 2 :]
    return tuple(told[:most])


def _split(line: str) -> _LogLine:
    if line.startswith("INFO:"):
        # access log of the web server, one line per request
        return _LogLine("INFO", line)
    prefix = _PREFIX.match(line)
    if prefix is None:
        return _LogLine("", line)
    return _LogLine(prefix["level"] or "", line[prefix.end() :].rstrip())


def _exceptions(lines: Sequence[_LogLine]) -> Iterator[str]:
    """Yield the exceptions, each with the indented lines after it that explain it, as pydantic writes them."""
    for number, line in enumerate(lines):
        if _RAISED.match(line.message):
            yield line.message
            for further in lines[number + 1 : number + 3]:
                if not further.message.startswith("  ") or _FRAME.match(further.message):
                    break
                yield further.message


def _first_frame(lines: Sequence[_LogLine]) -> list[str]:
    """Return where the first exception was raised: the file, and the line of code below it."""
    inside, frame = False, list[str]()
    for number, line in enumerate(lines):
        if _TRACEBACK in line.message:
            inside = True
        elif inside and _FRAME.match(line.message):
            frame = [further.message for further in lines[number : number + 2]]
        elif inside and _RAISED.match(line.message):
            return frame
    return frame


def _is_error(line: _LogLine) -> bool:
    """Return whether the line reports an error and is not part of a traceback."""
    if not line.message.strip() or line.message[0].isspace() or _TRACEBACK in line.message:
        return False
    if line.level in {"ERROR", "CRITICAL"}:
        return True
    return not line.level and _ERROR.search(line.message) is not None


def _each_once(lines: Sequence[str]) -> list[str]:
    """Return the lines without those that differ from an earlier one only in their numbers."""
    kept: dict[str, str] = {}
    for line in lines:
        kept.setdefault(_COUNTED.sub("#", line.strip()), line)
    return list(kept.values())
