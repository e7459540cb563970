"""What the rest of the code may ask of a runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

Phase = Literal["absent", "running", "restarting", "exited", "paused"]

Narrate = Callable[[str], None]
"""Takes one line of progress, such as a step of an image build."""


@dataclass(frozen=True)
class EngineState:
    """What is true of the engine's process now.

    `restarts` counts those that the runtime made by itself; `address` is HOST:PORT as it was started with; `connected`
    is false where the engine's container was taken off its network, so that nobody reaches it; `unasked` is true where
    it is known that nobody asked the engine to end.
    """

    phase: Phase
    exit_code: int | None = None
    restarts: int = 0
    out_of_memory: bool = False
    identity: str = ""
    address: str = ""
    connected: bool = True
    unasked: bool = False

    @property
    def alive(self) -> bool:
        """Whether a process exists that may be ready, or become it."""
        return self.phase in {"running", "paused"}


@dataclass(frozen=True)
class LogPage:
    """Lines of the engine's log, and the place to go on reading from."""

    lines: tuple[str, ...]
    cursor: str


def last_state(line: str) -> str:
    """What stays of a line that was written over, as progress bars do."""
    return line.rstrip("\r").rpartition("\r")[2]


class Runtime(Protocol):
    """An engine of one deployment. Secrets are redacted in every line that comes from here."""

    name: str

    def preflight(self) -> None:
        """Raises EngineMissing where this runtime cannot start anything on this machine."""

    def start(self, narrate: Narrate) -> bool:
        """Start the engine, or bring a running one up to date; tells whether anything had to be done."""

    def halt(self) -> None:
        """Stop the engine and keep its log, after it failed to become ready."""

    def down(self) -> bool:
        """Stop and remove the engine; weights and settings stay. Tells whether there was anything to stop."""

    def state(self) -> EngineState:
        """Look at the engine's process."""

    def memory(self) -> int | None:
        """Bytes of this machine's memory that the engine holds, without its GPUs'; `None` where nobody can tell."""

    def next_line(self) -> str:
        """The cursor of what an engine that is started now will write; lines of an earlier one lie before it."""

    def read_log(self, cursor: str = "") -> LogPage:
        """The lines written since `cursor`; all of the present engine's lines for an empty one."""
