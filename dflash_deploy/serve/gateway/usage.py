"""What each key has used since the engine's start."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from dflash_deploy.serve.started import start_time


class KeyCounters:
    """Requests, tokens and requests in flight by the names of keys."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str]] = Counter()
        self._prompt: Counter[str] = Counter()
        self._generated: Counter[str] = Counter()
        self._in_flight: Counter[str] = Counter()
        self._refused = 0
        self._registry = CollectorRegistry()
        self._registry.register(self)

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

    def count_refused(self) -> None:
        """Count a request without a valid key."""
        self._refused += 1

    def count_tokens(self, name: str, prompt: int, generated: int) -> None:
        """Count the tokens of a request, as its answer states them."""
        self._prompt[name] += prompt
        self._generated[name] += generated

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
        yield CounterMetricFamily("dflash_refused_requests", "Requests without a valid key.", value=self._refused)
        if (started := start_time(os.environ)) is not None:
            yield GaugeMetricFamily("dflash_start_time_seconds", "When the engine was started.", value=started)
