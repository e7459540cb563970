"""Processes that outlive their parent, identified by PID and start time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessId:
    """A process by PID and start time, since PIDs are reused. `started` is in clock ticks since boot."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """Return the process with this PID; `None` if there is none or it is a zombie."""
        try:
            fields = _fields(Path(f"/proc/{pid}/stat"))
        except OSError:
            return None
        return None if fields[0] == b"Z" else cls(pid, int(fields[19]))

    def alive(self) -> bool:
        """Return whether this process still runs."""
        return ProcessId.of(self.pid) == self

    def memory(self) -> int | None:
        """Return the bytes of memory of its session, shared pages counted once; `None` if no process is readable.

        Each engine is started in its own session, which includes its workers.
        """
        sizes = [size for stat in Path("/proc").glob("[0-9]*/stat") if (size := _held(stat, self.pid)) is not None]
        return sum(sizes) if sizes else None

    def session(self) -> tuple[int, ...]:
        """Return the PIDs of the processes of its session."""
        return tuple(_members(3, self.pid))

    def end(self, *, grace: float) -> None:
        """Send SIGTERM, wait `grace` seconds, then kill the whole process group."""
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
            # reap it, if it is a child of this process
            with suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)
            time.sleep(0.05)
        return True


def members_of_group(group: int) -> frozenset[int]:
    """Return the PIDs of the processes of a process group."""
    return frozenset(_members(2, group))


def _members(field: int, number: int) -> Iterator[int]:
    """Yield the PIDs of the processes with this number in a field of their status."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(_fields(stat)[field]) == number:
                yield int(stat.parent.name)


def _fields(stat: Path) -> list[bytes]:
    """Return the fields after the name, which is in parentheses and may contain any byte (proc(5)): state, parent, …"""
    return stat.read_bytes().rpartition(b")")[2].split()


def _held(stat: Path, session: int) -> int | None:
    """Return the proportional set size of a process in bytes if it belongs to the session (proc(5), smaps_rollup)."""
    try:
        if int(_fields(stat)[3]) != session:
            return None
        rollup = stat.with_name("smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:")), None)
