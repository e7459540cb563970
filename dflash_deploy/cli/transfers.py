"""Bytes that arrive: a bar with rate and time left on a terminal, a line now and then in a pipe."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from dflash_deploy.cli.numbers import GB
from dflash_deploy.cli.report import console

EVERY = 10.0
"""Seconds between two lines in a pipe."""


@dataclass(frozen=True)
class Arrived:
    """How far a transfer is: bytes, and seconds since it began."""

    done: int
    total: int
    seconds: float

    def __str__(self) -> str:
        rate = self.done / max(self.seconds, 0.001)
        left = (self.total - self.done) / rate if rate > 0 else 0.0
        return f"{self.done / GB:.2f} of {self.total / GB:.2f} GB, {rate / 1e6:.0f} MB/s, {left:.0f} s left"


@contextmanager
def transfer_display(total: int) -> Iterator[Callable[[int], None]]:
    """Yields the function that takes the count of bytes as they arrive; any thread may call it."""
    screen = console(stderr=True)
    if not screen.is_terminal or screen.is_dumb_terminal:
        yield Lines(total, EVERY, lambda arrived: console(stderr=True).print(str(arrived), markup=False))
        return
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda count: progress.advance(task, count)


class Lines:
    """Says how far a transfer is, at most once in `every` seconds; any thread may call it."""

    def __init__(self, total: int, every: float, say: Callable[[Arrived], None]) -> None:
        self._total = total
        self._every = every
        self._say = say
        self._done = 0
        self._began = self._said = time.monotonic()
        self._guard = threading.Lock()

    def __call__(self, count: int) -> None:
        """Count bytes that have arrived since the last call."""
        with self._guard:
            self._done += count
            now = time.monotonic()
            if now - self._said < self._every:
                return
            self._said = now
            arrived = Arrived(self._done, self._total, now - self._began)
        self._say(arrived)
