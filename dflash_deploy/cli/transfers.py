"""Bytes that arrive: a bar with rate and time left on a terminal, a line now and then in a pipe."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from dflash_deploy.cli.numbers import GB
from dflash_deploy.cli.report import console

EVERY = 10.0
"""Seconds between two lines in a pipe."""


@contextmanager
def transfer_display(total: int) -> Iterator[Callable[[int], None]]:
    """Yields the function that takes the count of bytes as they arrive; any thread may call it."""
    screen = console(stderr=True)
    if not screen.is_terminal or screen.is_dumb_terminal:
        yield _Lines(total)
        return
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda count: progress.advance(task, count)


class _Lines:
    """Prints how far it is, at most every EVERY seconds."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._began = self._said = time.monotonic()
        self._guard = threading.Lock()

    def __call__(self, count: int) -> None:
        with self._guard:
            self._done += count
            now = time.monotonic()
            if now - self._said < EVERY:
                return
            self._said = now
            rate = self._done / max(now - self._began, 0.001)
            left = (self._total - self._done) / rate if rate > 0 else 0.0
        console(stderr=True).print(
            f"{self._done / GB:.2f} of {self._total / GB:.2f} GB, {rate / 1e6:.0f} MB/s, {left:.0f} s left",
            markup=False,
        )
