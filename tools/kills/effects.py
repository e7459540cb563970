"""Effects of a process on a directory, counted as they begin, and a kill in front of one of them."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
SYNCED = "synced "  # begins a line that tells the inode of a file that was written to disk

# Events of sys.addaudithook whose first arguments are files.
NAMED = frozenset(
    f"os.{call}" for call in ("rename", "link", "symlink", "mkdir", "rmdir", "remove", "truncate", "chmod", "chown")
)


# Events whose last argument is the directory that the first one is relative to, or -1.
REMOVING = frozenset({"os.remove", "os.rmdir"})


class Effects:
    """Counts effects below `root`, tells each one to the descriptor `telling`, and kills in front of number `last`.

    An effect is a call that changes names, sizes or content, a write to disk, a supervisor that starts, or a signal
    that is sent. What is between two of them on this disk, a power cut or a kill does not tell apart.
    """

    def __init__(self, root: Path, telling: int, last: int | None) -> None:
        self._root = f"{root.resolve()}/"
        self._telling = telling
        self._last = last
        self._count = 0
        self._write = os.write

    def watch(self, program: str) -> None:
        """Count from now on. `program` is a word of the processes whose start counts."""
        os.open = self._opening(os.open)
        os.fsync = self._syncing(os.fsync)  # type: ignore[assignment]
        os.pwrite = self._writing(os.pwrite)
        os.write = self._writing(os.write)

        def heard(event: str, given: tuple[Any, ...]) -> None:
            if event == "open":
                if isinstance(given[2], int) and given[2] & WRITES:
                    self._effect_on(given[0], event)
            elif event in NAMED:
                place = given[1] if event in {"os.rename", "os.link"} else given[0]
                within = given[-1] if event in REMOVING and given[-1] >= 0 else None
                self._effect_on(place, event, within)
            elif (event == "subprocess.Popen" and program in map(str, given[1])) or event in {"os.kill", "os.killpg"}:
                self._effect(event)

        sys.addaudithook(heard)

    def _opening(self, function: Callable[P, int]) -> Callable[P, int]:
        """A new file is empty until something is written: that is between two effects."""

        def opened(*given: P.args, **named: P.kwargs) -> int:
            descriptor = function(*given, **named)
            if isinstance(given[1], int) and given[1] & os.O_CREAT:
                self._effect_on(given[0], "opened")
            return descriptor

        return opened

    def _syncing(self, function: Callable[[int], None]) -> Callable[[int], None]:
        def synced(descriptor: int) -> None:
            self._effect_on(descriptor, "fsync")
            function(descriptor)
            self._tell(f"{SYNCED}{os.fstat(descriptor).st_ino}")

        return synced

    def _writing(self, function: Callable[..., int]) -> Callable[..., int]:
        def written(descriptor: int, *given: Any) -> int:
            self._effect_on(descriptor, "write")
            return function(descriptor, *given)

        return written

    def _effect_on(self, place: Any, event: str, within: int | None = None) -> None:
        """Count it if the place, which `within` a directory may be relative to, is below the root."""
        try:
            named = str(Path(f"/proc/self/fd/{place}").readlink()) if isinstance(place, int) else os.fsdecode(place)
        except (OSError, TypeError):
            return
        folder = Path.cwd() if within is None else Path(f"/proc/self/fd/{within}").readlink()
        # not resolved: it may be a link that is removed
        file = str(folder / named)
        if f"{file}/".startswith(self._root):
            self._effect(f"{event} {file.removeprefix(self._root)}")

    def _effect(self, name: str) -> None:
        self._count += 1
        if self._count == self._last:
            os.kill(os.getpid(), signal.SIGKILL)
        self._tell(name)

    def _tell(self, line: str) -> None:
        self._write(self._telling, f"{line}\n".encode())
