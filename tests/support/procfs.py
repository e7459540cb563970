"""What /proc tells: which processes belong together, and what is mounted under a directory."""

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.commands import wait_until


@dataclass(frozen=True)
class Process:
    """A process as it was when it was looked at; `started` tells it from a later one with the same number."""

    pid: int
    parent: int
    started: int
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the program, without its directory."""
        return Path(self.arguments[0]).name

    def alive(self) -> bool:
        """Whether it still runs; one that only waits to be collected by its parent does not."""
        now = _look_at(self.pid)
        return now is not None and now.started == self.started

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process is gone."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def family_of(is_member: Callable[[Process], bool]) -> list[Process]:
    """The processes that are members, whoever is their parent by now, and all their descendants."""
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    everyone = [process for process in map(_look_at, numbers) if process is not None]
    family = {one.pid: one for one in everyone if is_member(one)}
    while children := [one for one in everyone if one.parent in family and one.pid not in family]:
        family.update({one.pid: one for one in children})
    return list(family.values())


def kill(processes: Sequence[Process], seconds: float) -> None:
    """Kill the processes, and wait at most this long until all of them are gone."""
    for one in processes:
        one.signal(signal.SIGKILL)
    wait_until(lambda: not any(one.alive() for one in processes), seconds)


def _look_at(pid: int) -> Process | None:
    """Read one process; None if it is gone, or only waits to be collected by its parent."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return None
    # The second field is a name in brackets that may itself hold blanks and brackets.
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX":
        return None
    return Process(pid, int(fields[1]), int(fields[19]), tuple(line.rstrip("\0").split("\0")))


def mount_points(*roots: Path) -> list[Path]:
    """What is mounted at or under these directories, the innermost first."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    points = [Path(_unescaped(line.split()[4])) for line in lines]
    found = [point for point in points if any(point.is_relative_to(root) for root in roots)]
    return sorted(found, key=lambda point: len(point.parts), reverse=True)


def _unescaped(field: str) -> str:
    """Blanks and the like are written as octal numbers in mountinfo."""
    return field.encode().decode("unicode_escape").encode("latin-1").decode()
