"""A command of `fleet` in the background: a test waits for a line of it, and then does something to a host."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.fleet_lab import Lab


class Started:
    """A command on the terminal, which runs now. `said` are the lines that were read."""

    def __init__(self, lab: Lab, *args: str) -> None:
        command = [*lab.prefix, sys.executable, "-m", "dflash_deploy", *args]
        self.process = subprocess.Popen(
            command, cwd=lab.directory, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        self.said = ""

    def until(self, words: str) -> str:
        """Wait for a line of progress with these words, and return it."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said += line
            if words in line:
                return line
        raise AssertionError(f"no line with {words!r}:\n{self.said}")

    def ended(self) -> int:
        """Wait for the end; return the exit code."""
        assert self.process.stderr is not None
        self.said += self.process.stderr.read()
        self.process.stderr.close()
        return self.process.wait(600)


@contextmanager
def started(lab: Lab, *args: str) -> Iterator[Started]:
    """Start `dflash-deploy` with these arguments; it is killed at the end of the block."""
    found = Started(lab, *args)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.wait()
        if found.process.stderr is not None:
            found.process.stderr.close()
