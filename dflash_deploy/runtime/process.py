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
            fields = _fields(Path(f"/proc/{pid}/stat"))
        except OSError:
            return None
        return None if fields[0] == b"Z" else cls(pid, int(fields[19]))

    def alive(self) -> bool:
        """Whether this very process still runs."""
        return ProcessId.of(self.pid) == self

    def memory(self) -> int | None:
        """Bytes of memory that its session holds, pages shared within it counted once; `None` where none is readable.

        A session, as each engine is started in one of its own, and its workers stay in it.
        """
        sizes = [size for stat in Path("/proc").glob("[0-9]*/stat") if (size := _held(stat, self.pid)) is not None]
        return sum(sizes) if sizes else None

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


def _fields(stat: Path) -> list[bytes]:
    """The fields behind the name, which stands in parentheses and may hold anything (proc(5)): state, parent, …"""
    return stat.read_bytes().rpartition(b")")[2].split()


def _held(stat: Path, session: int) -> int | None:
    """Bytes of the proportional set size of a process, where it belongs to the session (proc(5), smaps_rollup)."""
    try:
        if int(_fields(stat)[3]) != session:
            return None
        rollup = stat.with_name("smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:")), None)


def _reap(pid: int) -> None:
    """Take note of an ended child, where it is one of this process."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
