"""The speed of downloads: their limit of bandwidth, and connections that are too slow to be kept."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

SLOWEST = 1000
"""Bytes a second below which a connection counts as stalled."""

WINDOW = 60.0
"""Seconds of waiting for the network over which the speed is measured."""


class TryAgain(Exception):
    """Raised when an attempt fails and can be repeated; `after` is the server's Retry-After in seconds.

    `hint` is the next step of a person if no attempt succeeds.
    """

    def __init__(self, why: str, after: float | None = None, hint: str = "") -> None:
        super().__init__(why)
        self.after = after
        self.hint = hint


class TooSlow(TryAgain):
    """Raised when a connection delivers less than SLOWEST bytes a second over a WINDOW."""


class Throttle:
    """Limits all connections together to `rate` bytes per second; 0: no limit."""

    def __init__(self, rate: float = 0.0) -> None:
        self._rate = rate
        self._free = time.monotonic()
        self._guard = threading.Lock()

    def take(self, count: int) -> None:
        """Wait until `count` more bytes are within the limit."""
        if not self._rate:
            return
        with self._guard:
            self._free = max(self._free, time.monotonic()) + count / self._rate
            wait = self._free - time.monotonic()
        if wait > 0:
            time.sleep(wait)


def fast_enough(body: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the chunks of a body. Raises TooSlow if they drip: a timeout limits only the pause between two of them.

    Only the time spent on waiting for a chunk counts, not that of the bandwidth limit or the disk.
    """
    waited, size, asked = 0.0, 0, time.monotonic()
    for chunk in body:
        waited, size = waited + time.monotonic() - asked, size + len(chunk)
        yield chunk
        if waited >= WINDOW:
            if size < SLOWEST * waited:
                raise TooSlow(f"{size / waited:.0f} bytes/s over {waited:.0f} s")
            waited, size = 0.0, 0
        asked = time.monotonic()
