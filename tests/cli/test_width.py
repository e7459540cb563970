"""Lines on a terminal: no word is broken, and no line is longer than the terminal is wide."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.cli import dflash, initialise
from tests.support.screen import on_screen

COMMANDS = (
    ("plan", "--profile", "dgx-spark"),
    ("doctor",),
    ("models", "list"),
    ("models", "show", "tiny"),
    ("profiles", "list"),
    ("profiles", "show", "rtx-3090"),
    ("connect",),
    ("keys", "list"),
    ("status",),
    ("set", "--list"),
)

LONGEST = 30
"""Characters of the longest word that every column has room for; paths and names of files may be longer."""

COPIED = re.compile(r"command |[A-Z][A-Z0-9_]*=")
"""Lines that are copied, and so stay lines."""


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_word_is_broken(command: tuple[str, ...], columns: int, tmp_path: Path) -> None:
    initialise("--profile", "cpu", "--runtime", "native", at=tmp_path)
    piped = dflash(*command, at=tmp_path)
    words = set((piped.out + piped.err).split())
    with on_screen(*command, at=tmp_path, columns=columns, lines=500) as terminal:
        terminal.ended()
        lines = terminal.text.splitlines()
    assert len(lines) > 1
    copied = False
    for line, following in pairwise(lines):
        copied = bool(COPIED.match(line)) or (copied and len(line) >= columns - 1)
        last, first = (line.split() or [""])[-1], (following.split() or [""])[0]
        broken = last and last + first in words and last not in words and len(last + first) <= LONGEST
        assert not broken or copied, f"{line}\n{following}"
