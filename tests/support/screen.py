"""A command on a terminal, and what that terminal shows."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pexpect
import pyte

ENOUGH = 120.0  # seconds after which something that a test waits for is not going to be shown


class Screen:
    """A terminal, and the command on it."""

    def __init__(self, child: pexpect.spawn, columns: int, lines: int) -> None:
        self.child = child
        self.screen = pyte.Screen(columns, lines)
        # a terminal says where its cursor is
        self.screen.write_process_input = child.send
        self._stream = pyte.Stream(self.screen)

    @property
    def text(self) -> str:
        """What is shown now."""
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    def shows(self, text: str) -> None:
        """Wait until a text is shown."""
        until = time.monotonic() + ENOUGH
        while text not in self.text:
            assert time.monotonic() < until, f"`{text}` is not shown:\n{self.text}"
            self.reads()

    def hides(self, text: str) -> None:
        """Wait until a text is no longer shown."""
        until = time.monotonic() + ENOUGH
        while text in self.text:
            assert time.monotonic() < until, f"`{text}` stays:\n{self.text}"
            self.reads()

    def reads(self) -> None:
        """Show what arrives within a second."""
        with suppress(pexpect.TIMEOUT):
            self._stream.feed(self.child.read_nonblocking(4096, timeout=1))

    def types(self, line: str) -> None:
        """Type a line and Enter."""
        self.child.send(f"{line}\r")

    def backgrounds(self, text: str) -> list[str]:
        """The background of each character of the last line that has a text."""
        row = max(at for at, line in enumerate(self.screen.display) if text in line)
        begin = self.screen.display[row].index(text)
        return [self.screen.buffer[row][column].bg for column in range(begin, begin + len(text))]

    def ended(self) -> int:
        """Its exit code, once it has ended."""
        with suppress(pexpect.EOF):
            while True:
                self._stream.feed(self.child.read_nonblocking(4096, timeout=ENOUGH))
        self.child.close()
        return int(self.child.exitstatus)


@contextmanager
def on_screen(*args: str, at: Path, columns: int = 100, lines: int = 24) -> Iterator[Screen]:
    """A command of dflash-deploy on a terminal; it is ended with the block."""
    child = pexpect.spawn(
        sys.executable,
        ["-m", "dflash_deploy", *args],
        cwd=at,
        env={**os.environ, "TERM": "xterm-256color"},
        encoding="utf-8",
        dimensions=(lines, columns),
    )
    try:
        yield Screen(child, columns, lines)
    finally:
        child.close(force=True)
