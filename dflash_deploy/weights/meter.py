"""The rate of a download that is stopped after some seconds: only the time in which bytes can arrive counts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LATEST = 20.0
"""Seconds without a byte after which a measurement ends: a slow server answers late."""


class Meter:
    """Measures a download for `seconds`, or until LATEST if nothing arrives. Any thread may call it.

    Files are checked before and between downloads: `resume` and `pause` leave out that time.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._guard = threading.Lock()
        self._arrived = 0
        self._spent = 0.0
        self._since: float | None = None
        self._ended = False

    def resume(self) -> None:
        """A download begins. Nothing after the end, or if one runs."""
        with self._guard:
            if self._since is None and not self._ended:
                self._since = self._clock()

    def pause(self) -> None:
        """A download has ended."""
        with self._guard:
            self._spent, self._since = self._elapsed(), None

    def add(self, size: int) -> None:
        """Count bytes that arrived. A negative number is of bytes that are discarded: they arrived too."""
        with self._guard:
            self._arrived += max(size, 0)

    def end_if_due(self) -> bool:
        """End the measurement if it took long enough; return whether it has ended. What was on its way still counts."""
        with self._guard:
            elapsed = self._elapsed()
            if elapsed >= (self._seconds if self._arrived else max(self._seconds, LATEST)):
                self._spent, self._since, self._ended = elapsed, None, True
            return self._ended

    @property
    def rate(self) -> float | None:
        """Bytes a second; `None` if nothing arrived."""
        with self._guard:
            return self._arrived / max(self._elapsed(), 0.001) if self._arrived else None

    def _elapsed(self) -> float:
        return self._spent + (0.0 if self._since is None else self._clock() - self._since)
