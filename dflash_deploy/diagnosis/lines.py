"""The lines of a log: their process, level and message, and the engine and release that wrote them.

The formats are the ones of the engines, of Docker, and of programs that collect their logs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from dflash_deploy.catalog.log_signs import LogSign


# Characters of a line that are searched. Printed configurations are longer; error messages are not.
LONGEST_LINE = 2000

# Colors, cursor movements, titles of a terminal, and bytes that no text has.
_CONTROL = re.compile(r"\x1b(?:\[[0-9;?]{0,20}[A-Za-z]|\][^\x07\x1b]{0,80}\x07?)|[\x00-\x08\x0e-\x1a\x7f]")

_LEVELS = "DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL"
_DAY = r"(?:\d{4}-)?\d\d-\d\d"

# vLLM: `(EngineCore pid=274)`; torch: `[rank0]:`; a router of llama.cpp: `[52717]`. Nested ones are read in turn.
_PROCESS = re.compile(
    r"\((?P<process>[A-Za-z][\w ]{0,40}(?:pid|rank)=[^)]{1,40})\) ?|\[(?P<rank>rank\d{1,4}|\d{3,7})\]:? ?"
)

_VLLM = re.compile(
    rf"(?P<level>{_LEVELS}) +(?:{_DAY} \d\d:\d\d:\d\d[\d.,]{{0,7}} +)?"
    r"(?:\[[^\]]{0,80}\](?: |$)|[\w./]{1,60}:\d{1,6}\](?: |$)|(?<=\d ))"
)
_UVICORN = re.compile(rf"(?P<level>{_LEVELS}):\s+")
_SGLANG = re.compile(
    rf"\[{_DAY}[ |]\d\d:\d\d:\d\d(?P<process>[^\]]{{0,30}})\] ?"
    rf"(?:(?P<level>{_LEVELS}):?\s+)?(?:\S{{1,40}}:\d{{1,6}}: )?"
)
_LLAMACPP = re.compile(r"\d{1,6}\.\d\d\.\d{3}\.\d{3} (?P<level>[DIWEF]) ")
_GLOG = re.compile(r"\[?(?P<level>[IWEF])\d{3,4} [\d:.]{8,18}[^\]]{0,80}\] ?")
_LOGGING = re.compile(
    rf"{_DAY} \d\d:\d\d:\d\d[,.]\d{{3}} (?:- )?"
    rf"(?:[\w.]{{1,60}} (?:\d{{1,7}} )?(?:- )?)?\[?(?P<level>{_LEVELS})\b\]?[ :-]*"
)
_FORMATS = (_VLLM, _UVICORN, _SGLANG, _LLAMACPP, _GLOG, _LOGGING)

# The number of vLLM's format: its logger writes the prefix before each line of a text, so that a line without one is
# something else.
OF_EACH_LINE = 1 + _FORMATS.index(_VLLM)

# What `docker compose logs`, `docker logs -t`, Kubernetes and journald write before a line.
_COLLECTED = re.compile(
    r"[\w.-]{1,60}\s{1,20}\| "
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\s(?:\| ?)?"
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S{1,60} [^\s:]{1,60}: "
)

_PYTHON_WARNING = re.compile(
    r"(?:\S{1,300}:\d{1,6}: )?\w{0,40}Warning: |[Ww]arning: |NCCL WARN|\{\"timestamp\".{0,60}\"level\":\"WARN"
)

# What SGLang, vLLM, Transformers and llama.cpp write of something that they do without, some as errors.
_SURVIVED = re.compile(
    r"Ignore import error when loading |Failed to import Triton kernels\b|\[ERROR\] `\w{1,60}` is part of "
    r"|.{0,160}(?:failed to measure draft model memory|\(this warning is normal during memory fitting\)$)"
)

_NAMES = {
    "WARN": "WARNING",
    "FATAL": "CRITICAL",
    "D": "DEBUG",
    "I": "INFO",
    "W": "WARNING",
    "E": "ERROR",
    "F": "CRITICAL",
}

_ACCESS = re.compile(r"[\d.:a-f]{3,40} - \"[A-Z]+ \S+ HTTP/")

_BRACKETS = frozenset("([")
_LINE_BEGINS = frozenset("DICWEF[0123456789")  # first characters of the formats
QUIET = frozenset({"DEBUG", "INFO"})
ERRORS = frozenset({"ERROR", "CRITICAL"})


class LogLine(NamedTuple):
    """A line of a log. `level` is empty if the line has none; `form` numbers its format, 0 if it has none."""

    process: str
    level: str
    message: str
    form: int = 0

    @property
    def record(self) -> bool:
        """Whether a prefix with level or time begins it."""
        return bool(self.form)


def readable(lines: Iterable[str]) -> tuple[str, ...]:
    """Return lines without colors and control characters, cut to LONGEST_LINE characters."""
    return tuple(clean(line) for text in lines for line in text.splitlines())


def clean(line: str) -> str:
    """Return a line without colors and control characters, cut to LONGEST_LINE characters."""
    cut = line[: 2 * LONGEST_LINE]
    if not cut.isprintable():
        cut = _CONTROL.sub("", cut)
    return cut[:LONGEST_LINE]


def parsed(line: str) -> LogLine:
    """Split a line. A line in no known format is a message of no level."""
    process, level, at, form = "", "", 0, 0
    if line[:1].isdigit() or line[3:4] == " " or "|" in line[:64]:
        at = _collected(line)
    while line[at : at + 1] in _BRACKETS and (named := _PROCESS.match(line, at)) is not None:
        process, at = named["process"] or named["rank"], named.end()
    for number, known in enumerate(_FORMATS, 1) if line[at : at + 1] in _LINE_BEGINS else ():
        if (found := known.match(line, at)) is not None:
            fields = found.groupdict()
            level = fields["level"] or ""
            process = process or (fields.get("process") or "").strip()
            at, form = found.end(), number
            break
    message = line[at:].rstrip()
    return LogLine(process, _judged(_NAMES.get(level, level), message), message, form)


def _collected(line: str) -> int:
    """The place behind what a collector of logs writes before a line."""
    at = 0
    for _ in range(2):
        if (prefix := _COLLECTED.match(line, at)) is None or _LOGGING.match(line, at):
            break
        at = prefix.end()
    return at


def _judged(level: str, message: str) -> str:
    """The level of a message: an access log is INFO, and some warnings have no level, or that of an error."""
    if level not in QUIET and _SURVIVED.match(message):
        return "WARNING"
    if not level and ("arning: " in message or "WARN" in message) and _PYTHON_WARNING.match(message):
        return "WARNING"
    return "INFO" if " HTTP/" in message and _ACCESS.match(message) else level


FIRST_LINES = 20_000  # lines in which the engine is looked for; all of them name themselves in their first hundred


class Recognised:
    """The engine and release that a log names; each is empty as long as it does not.

    `told` is the engine if the user names it; lines of the log do not change it.
    """

    def __init__(self, signs: Sequence[LogSign], told: str = "") -> None:
        self.lines = 0
        self._signs = signs
        self._wrote = told
        self._mentioned: set[str] = set()
        self._releases: dict[str, str] = {}

    @property
    def engine(self) -> str:
        """The engine of the first line that only one engine writes, else the first of the signs that is mentioned."""
        return self._wrote or next((sign.engine for sign in self._signs if sign.engine in self._mentioned), "")

    @property
    def release(self) -> str:
        """The release of the engine."""
        return self._releases.get(self.engine, "")

    def watch(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the lines, and look for the engine in the first of them."""
        for line in lines:
            self.lines += 1
            if self.lines <= FIRST_LINES and not (self._wrote and self.release):
                self._look(line)
            yield line

    def _look(self, line: str) -> None:
        for sign in self._signs:
            if not self._wrote and sign.writes.search(line):
                self._wrote = sign.engine
            if not self._wrote and sign.mentioned.search(line):
                self._mentioned.add(sign.engine)
            if sign.engine not in self._releases and (found := sign.releases.search(line)):
                self._releases[sign.engine] = sign.prefix + found[1].rstrip(".")
