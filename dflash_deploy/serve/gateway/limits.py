"""Limits of keys: requests in flight and tokens per minute, in memory of the one gateway of a deployment."""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque

from dflash_deploy.serve.gateway.keys import Accepted

MINUTE = 60.0  # seconds


class KeyLimits:
    """Requests and tokens of keys by name. Times are seconds of the monotonic clock."""

    def __init__(self) -> None:
        self._in_flight: Counter[str] = Counter()
        self._recent: defaultdict[str, _Recent] = defaultdict(_Recent)

    def admit(self, key: Accepted, now: float) -> int | None:
        """Begin a request, which `leave` ends; or the seconds until the key may."""
        wait = self.wait(key, now)
        if wait is None and key.in_flight is not None and self._in_flight[key.name] >= key.in_flight:
            wait = 1
        if wait is None:
            self._in_flight[key.name] += 1
        return wait

    def widen(self, key: Accepted, sequences: int) -> bool:
        """Count further sequences of an admitted request; whether the key may have this many at the same time."""
        if key.in_flight is not None and self._in_flight[key.name] + sequences > key.in_flight:
            return False
        self._in_flight[key.name] += sequences
        return True

    def leave(self, key: Accepted, sequences: int = 1) -> None:
        """End a request that was admitted, with all its sequences."""
        self._in_flight[key.name] -= sequences

    def wait(self, key: Accepted, now: float) -> int | None:
        """The seconds until the tokens of the last minute allow a request; `None` if they allow it now."""
        if key.tokens_per_minute is None:
            return None
        free = self._recent[key.name].allows(key.tokens_per_minute, now)
        return None if free is None else max(1, math.ceil(free - now))

    def reserve(self, key: Accepted, tokens: int, now: float) -> int | None:
        """Count tokens that a request is about to use; or the seconds until it may. `settle` corrects the number.

        A request is let in while fewer than the limit are used or reserved. So a minute has at most the limit and one
        request more, as far as requests use no more than was reserved.
        """
        wait = self.wait(key, now)
        if wait is None:
            self._spend(key, tokens, now)
        return wait

    def settle(self, key: Accepted, reserved: int, begun: float, used: int, now: float) -> None:
        """Replace the tokens that were reserved at `begun` by those that were used."""
        if reserved and now - begun < MINUTE:
            self._spend(key, -reserved, begun)
        self._spend(key, used, now)

    def _spend(self, key: Accepted, tokens: int, now: float) -> None:
        if key.tokens_per_minute is not None:
            self._recent[key.name].add(now, tokens)


class _Recent:
    """The tokens of the last minute, by the time when they were reserved or used."""

    def __init__(self) -> None:
        self._entries: deque[tuple[float, int]] = deque()
        self._total = 0

    def add(self, then: float, tokens: int) -> None:
        """Add tokens; reserved ones are given back at the time when they were reserved."""
        place = len(self._entries)
        while place and self._entries[place - 1][0] > then:
            place -= 1
        self._entries.insert(place, (then, tokens))
        self._total += tokens

    def allows(self, most: int, now: float) -> float | None:
        """When fewer than `most` tokens are in the last minute; `None` if they are now."""
        while self._entries and now - self._entries[0][0] >= MINUTE:
            self._total -= self._entries.popleft()[1]
        over = self._total - most
        free: float | None = None
        for then, tokens in self._entries:
            if over < 0:
                break
            over -= tokens
            free = then + MINUTE
        return free
