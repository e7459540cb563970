"""Standard output and error whose lost lines fail nothing: what a command did stays done."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import TextIO


class Kept(io.TextIOWrapper):
    """A stream that keeps the first error, such as of a reader that ended, and discards everything after it."""

    problem: OSError | None = None

    def write(self, text: str) -> int:
        """Write a text; return its length also if it is lost."""
        try:
            super().write(text)
        except OSError as problem:
            self._discard(problem)
        return len(text)

    def flush(self) -> None:
        """Write what is left."""
        try:
            super().flush()
        except OSError as problem:
            self._discard(problem)

    def _discard(self, problem: OSError) -> None:
        self.problem = self.problem or problem
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())


def install() -> None:
    """Replace `sys.stdout` and `sys.stderr`, which Python does not have if they are closed."""
    sys.stdout, sys.stderr = _kept(sys.stdout), _kept(sys.stderr)


def _kept(stream: TextIO | None) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):
        # opened now: else the next file of a command would become standard output
        return Kept(Path(os.devnull).open("wb"), "utf-8")
    lines, at_once, encoding = stream.line_buffering, stream.write_through, stream.encoding
    # on a terminal, standard error writes each text at once
    return Kept(stream.detach(), encoding, "backslashreplace", line_buffering=lines, write_through=at_once)


def lost_output() -> OSError | None:
    """The error that ended standard output; `None` if all of it arrived so far, or if it was closed before."""
    sys.stdout.flush()
    return getattr(sys.stdout, "problem", None)
