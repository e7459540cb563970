"""Progress on a terminal as one live line, elsewhere as a line per phase, for programs as lines of JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from dflash_deploy.cli.report import Redact, console, print_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from dflash_deploy.startup import StartProgress

HEARTBEAT = 15.0
"""Seconds after which a pipe gets a line even though nothing has changed."""


@contextmanager
def boot_display(redact: Redact, *, json_stream: bool = False) -> Iterator[Callable[[StartProgress], None]]:
    """Yields the function that shows progress for as long as the block runs.

    People see it on standard error; with `json_stream` programs read it from standard output.
    """
    screen = console(stderr=True)
    if json_stream:
        yield _OnChange(lambda progress: _event(progress, redact), counting=True)
    elif screen.is_terminal and not screen.is_dumb_terminal:
        with screen.status("starting") as status:
            yield lambda progress: _live(status, screen, progress, redact)
    else:
        yield _OnChange(lambda progress: screen.print(redact(_line(progress)), markup=False), counting=False)


def _live(status: Status, screen: Console, progress: StartProgress, redact: Redact) -> None:
    from rich.text import Text

    head = f"{_where(progress)}  {_times(progress)}  "
    room = max(screen.width - len(head) - 4, 10)
    status.update(Text.assemble((head, "bold"), (redact(progress.last_line)[:room], "dim")))


def _line(progress: StartProgress) -> str:
    last_time = f" ({progress.usual_in_phase:.0f} s last time)" if progress.usual_in_phase else ""
    said = f": {progress.last_line}" if progress.last_line else ""
    return f"{progress.elapsed:5.0f} s  {_where(progress)}{last_time}{said}"


def _event(progress: StartProgress, redact: Redact) -> None:
    print_json({"event": "progress", **asdict(progress)}, redact, in_lines=True)


def _where(progress: StartProgress) -> str:
    return f"{progress.phase} {progress.done}/{progress.total}" if progress.total else progress.phase


def _times(progress: StartProgress) -> str:
    """Seconds so far, and of how many where that is known; once it takes longer, no promise is left."""
    if progress.usual is None or progress.elapsed > progress.usual:
        return f"{progress.elapsed:.0f} s"
    return f"{progress.elapsed:.0f} of about {progress.usual:.0f} s"


class _OnChange:
    """Shows a new phase at once, and now and then one that stays; where `counting`, each step within it too."""

    def __init__(self, show: Callable[[StartProgress], None], *, counting: bool) -> None:
        self._show = show
        self._counting = counting
        self._seen: tuple[str, int] | None = None
        self._said = 0.0

    def __call__(self, progress: StartProgress) -> None:
        now, seen = time.monotonic(), (progress.phase, progress.done if self._counting else 0)
        if seen != self._seen or now - self._said > HEARTBEAT:
            self._seen, self._said = seen, now
            self._show(progress)
