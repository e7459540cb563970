"""Standard output and error that survive: closed, full, a reader that ends, an encoding that lacks characters."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import Any, TextIO


class _Surviving(io.RawIOBase):
    """Writes to a file descriptor. After the first error it discards everything, and keeps the error."""

    def __init__(self, descriptor: int, problem: OSError | None) -> None:
        self.problem = problem
        self._descriptor = descriptor

    def write(self, data: Any) -> int:
        """Write bytes and return how many; all of them if they are discarded."""
        while self.problem is None:
            try:
                return os.write(self._descriptor, data)
            except BlockingIOError:
                select.select([], [self._descriptor], [])
            except OSError as problem:
                self.problem = problem
        return len(data)

    def writable(self) -> bool:
        """Return True."""
        return True

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._descriptor


def install() -> None:
    """Replace `sys.stdout` and `sys.stderr` with streams whose writes never raise."""
    _open_standard_descriptors()
    sys.stdout = _surviving(sys.stdout, 1)
    sys.stderr = _surviving(sys.stderr, 2)


def lost_output() -> OSError | None:
    """Return the error that ended standard output; `None` if all of it arrived so far, or if it was closed before."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if not isinstance(raw, _Surviving):
        return None
    sys.stdout.flush()
    return raw.problem if raw.problem is not None and raw.problem.errno != errno.EBADF else None


def _surviving(stream: TextIO | None, descriptor: int) -> TextIO:
    # Python has no stream if the descriptor was closed
    problem = OSError(errno.EBADF, os.strerror(errno.EBADF)) if stream is None else None
    return io.TextIOWrapper(
        io.BufferedWriter(_Surviving(descriptor, problem)),
        encoding=getattr(stream, "encoding", None) or "utf-8",
        errors="backslashreplace",
        line_buffering=descriptor == 2 or getattr(stream, "line_buffering", False),
        write_through=getattr(stream, "write_through", False),
    )


def _open_standard_descriptors() -> None:
    """Open closed ones on /dev/null: else the next file that a command opens becomes standard output."""
    while True:
        descriptor = os.open(os.devnull, os.O_RDWR)
        if descriptor > 2:
            os.close(descriptor)
            return
