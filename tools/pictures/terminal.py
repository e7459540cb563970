"""Commands in a real terminal, and what its screen showed when."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pexpect
import pyte
from pyte.screens import Char

HEIGHT = 200  # rows of the terminal: more than any recorded command prints, so that nothing scrolls away
READ_BYTES = 65536
SILENCE = 1800  # seconds without output after which a command counts as hung


@dataclass(frozen=True)
class Run:
    """Neighbouring characters with one look, the first one in `column`. `colour` is a name of the 16 ANSI colours."""

    column: int
    text: str
    colour: str
    bold: bool


@dataclass(frozen=True)
class Line:
    """A line of the screen as it was at the end, and the second in which it got this text."""

    seconds: float
    runs: tuple[Run, ...]

    @property
    def text(self) -> str:
        """What it says."""
        shown = ""
        for run in self.runs:
            shown = shown.ljust(run.column) + run.text
        return shown


def record(
    command: Sequence[str], *, at: Path, columns: int, environment: Mapping[str, str] | None = None
) -> list[Line]:
    """The screen after `command` ran in the directory `at`. Raises RuntimeError if its exit code is not 0."""
    screen = pyte.Screen(columns, HEIGHT)
    stream = pyte.ByteStream(screen)
    variables = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(columns)} | dict(environment or {})
    child = pexpect.spawn(
        command[0], list(command[1:]), cwd=str(at), env=variables, dimensions=(HEIGHT, columns), timeout=SILENCE
    )
    started = time.monotonic()
    changed: dict[int, float] = {}
    while True:
        try:
            stream.feed(child.read_nonblocking(READ_BYTES, timeout=SILENCE))
        except pexpect.EOF:
            break
        for row in screen.dirty:
            changed[row] = time.monotonic() - started
        screen.dirty.clear()
    child.close()
    lines = [Line(changed.get(row, 0.0), _runs(screen.buffer[row], columns)) for row in range(HEIGHT)]
    while lines and not lines[-1].runs:
        lines.pop()
    if child.exitstatus:
        raise RuntimeError("\n".join([f"{' '.join(command)} ended with {child.exitstatus}", *(x.text for x in lines)]))
    return lines


def _runs(row: Mapping[int, Char], columns: int) -> tuple[Run, ...]:
    """The characters of a row by their look, blank ends left out."""

    def look(column: int) -> tuple[str, bool]:
        char = row[column]
        return char.fg, bool(char.bold)

    runs = []
    for (colour, bold), members in groupby(range(columns), key=look):
        places = list(members)
        text = "".join(row[column].data for column in places)
        if text.strip():
            start = places[0] + len(text) - len(text.lstrip())
            runs.append(Run(start, text.strip(), colour, bold))
    return tuple(runs)
