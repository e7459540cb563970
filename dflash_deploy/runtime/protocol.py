"""The interface of a runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from dflash_deploy.serve.settings import RuntimeName

Phase = Literal["absent", "running", "restarting", "exited", "paused"]

Narrate = Callable[[str], None]  # takes one line of progress, such as a step of an image build


@dataclass(frozen=True)
class EngineState:
    """The current state of the engine's process.

    `restarts` counts restarts by the runtime. `address` is the HOST:PORT that it was started with. `connected` is
    false if the container is disconnected from its network and unreachable. `asked`: whether it was asked
    to end; `None` if that is not known.
    """

    phase: Phase
    exit_code: int | None = None
    restarts: int = 0
    out_of_memory: bool = False
    identity: str = ""
    address: str = ""
    connected: bool = True
    asked: bool | None = None

    @property
    def alive(self) -> bool:
        """Whether a process exists that is ready or may become ready."""
        return self.phase in {"running", "paused"}

    def holds(self, host: str, port: int) -> bool:
        """Whether the deployment itself listens on an address."""
        return self.address == f"{host}:{port}" and self.alive


@dataclass(frozen=True)
class LogPage:
    """Lines of the engine's log, and the cursor for the next lines."""

    lines: tuple[str, ...]
    cursor: str


ReadLog = Callable[[str], LogPage]  # returns the lines of one process after a cursor


def last_state(line: str) -> str:
    """Return the last text of a line that was overwritten, as by a progress bar."""
    return line.rstrip("\r").rpartition("\r")[2]


class Runtime(Protocol):
    """The engine of one deployment. Secrets are redacted in every returned line."""

    name: RuntimeName

    def preflight(self) -> None:
        """Raise EngineMissing if this runtime does not work on this machine."""

    def start(self, narrate: Narrate) -> bool:
        """Start the engine, or restart it with changed settings; return whether anything had to be done."""

    def halt(self, *, at_once: bool = False) -> None:
        """Stop an engine that failed to become ready, and keep its log. `at_once`: kill it, without time to end."""

    def down(self) -> bool:
        """Stop and remove the engine; weights and settings stay. Return whether there was an engine."""

    def state(self) -> EngineState:
        """Return the current state of the engine's process."""

    def memory(self) -> int | None:
        """Return the bytes of host memory that the engine uses, without GPU memory; `None` if unknown."""

    def next_line(self) -> str:
        """Return the log cursor for an engine that is started now: after the lines of earlier engines."""

    def read_log(self, cursor: str = "") -> LogPage:
        """Return the lines since `cursor`; all lines of the current engine if it is empty."""
