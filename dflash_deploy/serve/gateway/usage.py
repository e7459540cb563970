"""What each key has used since the engine's start, and whether its limits allow one more request."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from dflash_deploy.serve.gateway.keyring import Accepted

MINUTE = 60.0
"""Seconds."""


class KeyCounters:
    """Requests, tokens and requests in flight by the names of keys. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str]] = Counter()
        self._prompt: Counter[str] = Counter()
        self._generated: Counter[str] = Counter()
        self._in_flight: Counter[str] = Counter()
        self._recent: dict[str, deque[tuple[float, int]]] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def wait(self, key: Accepted, now: float) -> int | None:
        """The seconds until a limit of the key allows a request; `None` if it is allowed now."""
        if key.in_flight is not None and self._in_flight[key.name] >= key.in_flight:
            return 1
        if key.tokens_per_minute is None:
            return None
        free: float | None = None
        recent = self._recent.setdefault(key.name, deque())
        while recent and now - recent[0][0] >= MINUTE:
            recent.popleft()
        over = sum(tokens for _, tokens in recent) - key.tokens_per_minute
        for then, tokens in recent:
            if over < 0:
                break
            over -= tokens
            free = then + MINUTE
        return None if free is None else max(1, math.ceil(free - now))

    @contextmanager
    def at_work(self, name: str) -> Iterator[None]:
        """Count a request as in flight."""
        self._in_flight[name] += 1
        try:
            yield
        finally:
            self._in_flight[name] -= 1

    def count_request(self, name: str, status: str) -> None:
        """Count a request that has ended. `status` is that of HTTP, or `cancelled` if the client left."""
        self._requests[name, status] += 1

    def count_tokens(self, key: Accepted, prompt: int, generated: int, now: float) -> None:
        """Count the tokens of a request, as its answer states them."""
        self._prompt[key.name] += prompt
        self._generated[key.name] += generated
        if key.tokens_per_minute is not None:
            # `wait` removes them again
            self._recent.setdefault(key.name, deque()).append((now, prompt + generated))

    def exposition(self) -> bytes:
        """All counters in the text format of Prometheus."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """The counters, for the registry."""
        requests = CounterMetricFamily("dflash_key_requests", "Requests by name of the key.", labels=["name", "status"])
        for (name, status), count in sorted(self._requests.items()):
            requests.add_metric([name, status], count)
        yield requests
        for kind, said, counts in (
            ("prompt", "Tokens read, by name of the key.", self._prompt),
            ("generation", "Tokens generated, by name of the key.", self._generated),
        ):
            tokens = CounterMetricFamily(f"dflash_key_{kind}_tokens", said, labels=["name"])
            for name, count in sorted(counts.items()):
                tokens.add_metric([name], count)
            yield tokens
        flying = GaugeMetricFamily("dflash_key_requests_in_flight", "Requests in flight.", labels=["name"])
        for name, count in sorted(self._in_flight.items()):
            flying.add_metric([name], count)
        yield flying
