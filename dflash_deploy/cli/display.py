"""Progress on a terminal as one live line, elsewhere as a line per phase."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dflash_deploy.cli.report import Redact, console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from dflash_deploy.boot import Progress

HEARTBEAT = 15.0
"""Seconds after which a pipe gets a line even though the phase is the same."""


@contextmanager
def boot_display(redact: Redact) -> Iterator[Callable[[Progress], None]]:
    """Yields the function that shows progress on standard error for as long as the block runs."""
    screen = console(stderr=True)
    if screen.is_terminal and not screen.is_dumb_terminal:
        with screen.status("starting") as status:
            yield lambda progress: _live(status, screen, progress, redact)
    else:
        yield _Lines(screen, redact)


def _live(status: Status, screen: Console, progress: Progress, redact: Redact) -> None:
    from rich.text import Text

    head = f"{progress.phase}  {progress.elapsed:.0f} s  "
    room = max(screen.width - len(head) - 4, 10)
    status.update(Text.assemble((head, "bold"), (redact(progress.last_line)[:room], "dim")))


class _Lines:
    """A line when the phase changes, and now and then while it does not."""

    def __init__(self, screen: Console, redact: Redact) -> None:
        self._screen = screen
        self._redact = redact
        self._phase = ""
        self._said = 0.0

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.phase != self._phase or now - self._said > HEARTBEAT:
            self._phase, self._said = progress.phase, now
            line = f"{progress.elapsed:5.0f} s  {progress.phase}: {progress.last_line}"
            self._screen.print(self._redact(line), markup=False)
