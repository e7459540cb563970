"""Processes that outlive their parent, told apart from later ones with the same number."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessId:
    """A process by its number and its start, since numbers are used again. `started` is in clock ticks since boot."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The process with this number, or `None` where there is none or it has ended and waits to be reaped."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        except OSError:
            return None
        # the name in parentheses may hold anything; the fields after it are fixed (proc(5))
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] == "Z" else cls(pid, int(fields[19]))

    def alive(self) -> bool:
        """Whether this very process still runs."""
        return ProcessId.of(self.pid) == self

    def end(self, *, grace: float) -> None:
        """Ask it to end, wait `grace` seconds, then end its whole process group."""
        if not self.alive():
            return
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        if not self._gone_within(grace):
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._gone_within(5.0)

    def _gone_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.alive():
            if time.monotonic() > deadline:
                return False
            _reap(self.pid)
            time.sleep(0.05)
        return True


def _reap(pid: int) -> None:
    """Take note of an ended child, where it is one of this process."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
