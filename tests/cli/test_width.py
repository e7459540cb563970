"""Lines on a terminal: no word is broken, and no line is longer than the terminal is wide."""

import os
import re
import sys
import termios
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pyte
import pytest

from tests.support.cli import dflash, initialise
from tools.pictures.terminal import record

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

LONGEST = 30  # characters of the longest word that every column has room for; paths and names of files may be longer
COPIED = re.compile(r"command |[A-Z][A-Z0-9_]*=")  # lines that are copied, and so stay lines


# Code for the command's process: its standard streams are this terminal.
ON_TERMINAL = "import os; [os.dup2(os.open({!r}, os.O_RDWR), stream) for stream in range(3)]"


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deployment whose engine does not run."""
    place = tmp_path_factory.mktemp("deployment")
    initialise("--profile", "cpu", "--runtime", "native", at=place)
    return place


def written_to(terminal: int) -> Iterator[str]:
    """All that a terminal is sent, until no process has it open."""
    try:
        while piece := os.read(terminal, 1 << 16):
            yield piece.decode()
    except OSError:
        return


def on_terminal(*command: str, at: Path, columns: int) -> list[str]:
    """The lines that a terminal of this width shows after a command."""
    ours, its = os.openpty()
    termios.tcsetwinsize(its, (500, columns))
    screen = pyte.Screen(columns, 500)
    stream = pyte.Stream(screen)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(lambda: [stream.feed(text) for text in written_to(ours)])
        first = ON_TERMINAL.format(os.ttyname(its))
        dflash(*command, at=at, environment={"TERM": "xterm-256color"}, first=first)
        os.close(its)
        reading.result()
    os.close(ours)
    return "\n".join(line.rstrip() for line in screen.display).rstrip().splitlines()


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_word_is_broken(command: tuple[str, ...], columns: int, deployment: Path) -> None:
    piped = dflash(*command, at=deployment)
    words = set((piped.out + piped.err).split())
    lines = on_terminal(*command, at=deployment, columns=columns)
    assert len(lines) > 1
    copied = False
    for line, following in pairwise(lines):
        copied = bool(COPIED.match(line)) or (copied and len(line) >= columns - 1)
        last, first = (line.split() or [""])[-1], (following.split() or [""])[0]
        broken = last and last + first in words and last not in words and len(last + first) <= LONGEST
        assert not broken or copied, f"{line}\n{following}"


CHECKED = """
from dflash_deploy.checks.check import CheckResult
from dflash_deploy.cli.display import Terminal
reporter = Terminal(results_on_stdout=True)
for status in ("passed", "failed", "skipped"):
    reporter.checked(CheckResult("lossless", status, 20.3, "", {got!r}, "see models/tiny/README.md"))
"""


@pytest.mark.parametrize("columns", [80, 120])
def test_a_check_breaks_no_word(columns: int, tmp_path: Path) -> None:
    got = " ".join(f"{word}{number}" for number in range(5) for word in ("prefers", "each", "of", "drafts", "rejected"))
    program = CHECKED.format(got=got)
    command = (sys.executable, "-c", program)
    lines = [line.text.rstrip() for line in record(command, at=tmp_path, columns=columns) if line.text.strip()]
    assert max(map(len, lines)) <= columns
    words = [word for line in lines for word in line.split()]
    assert [word for word in words if word[-1].isdigit() and word[0].isalpha()] == 3 * got.split()
    assert len(lines) > 6
