"""A closed loop of streams: each asks its next question as soon as it has its answer."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from dflash_deploy.bench.prompts import Prompt
from dflash_deploy.client import Endpoint, SpecCounters


@dataclass(frozen=True)
class Load:
    """Repeated measurements under one number of streams. `tokens_per_second` has one figure per repeat."""

    concurrency: int
    tokens_per_second: tuple[float, ...]
    counted: SpecCounters

    @property
    def median(self) -> float:
        """Median completion tokens per second over the repeats, all streams together."""
        return statistics.median(self.tokens_per_second)


def measure(
    connect: Callable[[], Endpoint], prompts: Sequence[Prompt], *, concurrency: int, requests: int, repeats: int
) -> Load:
    """Answer `requests` prompts over `concurrency` streams, `repeats` times, after one round to warm up.

    Time runs from the first request to the last answer of a round, prefill included. Raises EndpointError.
    """
    with connect() as endpoint:
        _round(connect, prompts, concurrency, requests)
        before = endpoint.counters()
        rates = tuple(_round(connect, prompts, concurrency, requests) for _ in range(repeats))
        return Load(concurrency, rates, endpoint.counters() - before)


def _round(connect: Callable[[], Endpoint], prompts: Sequence[Prompt], concurrency: int, requests: int) -> float:
    """Completion tokens per second of one round. Every round asks the same prompts in the same order."""
    queue = itertools.islice(itertools.cycle(prompts), requests)
    turn = threading.Lock()

    def stream() -> int:
        tokens = 0
        with connect() as endpoint:
            while True:
                with turn:
                    prompt = next(queue, None)
                if prompt is None:
                    return tokens
                tokens += endpoint.complete(prompt.body(endpoint.model)).completion_tokens

    with ThreadPoolExecutor(concurrency) as pool:
        started = time.monotonic()
        streams = [pool.submit(stream) for _ in range(concurrency)]
        tokens = sum(future.result() for future in streams)
        return tokens / (time.monotonic() - started)
