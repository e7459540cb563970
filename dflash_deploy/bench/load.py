"""A closed loop of clients: each sends its next request as soon as it has the answer to the last one."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from dflash_deploy.client.answers import EndpointError
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.client.metrics import Metrics
from dflash_deploy.client.stream import TimedCompletion, streaming_body, time_completion
from dflash_deploy.serve.engines.counters import SpecCounters

if TYPE_CHECKING:
    import aiohttp


@dataclass(frozen=True)
class Round:
    """All requests of one repeat, and the seconds from the first request to the last answer, prefill included."""

    requests: tuple[TimedCompletion, ...]
    seconds: float

    @property
    def answered(self) -> list[TimedCompletion]:
        """The requests with a complete answer."""
        return [request for request in self.requests if not request.problem]

    @property
    def tokens_per_second(self) -> float:
        """Completion tokens per second, all requests together."""
        return sum(request.completion_tokens for request in self.answered) / self.seconds


@dataclass(frozen=True)
class Load:
    """Repeated measurements at one concurrency.

    `counted` and `cached` are the increase of the engine's counters during them, from all of its clients: of drafts,
    and of tokens in the prefix cache. They are `None` if they cannot be read.
    """

    concurrency: int
    rounds: tuple[Round, ...]
    counted: SpecCounters | None
    cached: int | None = None

    @property
    def tokens_per_second(self) -> tuple[float, ...]:
        """One figure per repeat."""
        return tuple(one.tokens_per_second for one in self.rounds)

    @property
    def median(self) -> float:
        """Median completion tokens per second over the repeats, all requests together."""
        return statistics.median(self.tokens_per_second)


def measure(
    endpoint: Endpoint,
    bodies: Sequence[Mapping[str, object]],
    *,
    concurrency: int,
    requests: int,
    repeats: int = 1,
    warmup: int | None = None,
) -> Load:
    """Send `requests` of the bodies at `concurrency`, `repeats` times, the same ones in the same order.

    `warmup` requests precede them without being measured; `None`: as many as `concurrency`.
    """
    return asyncio.run(_measure(endpoint, bodies, concurrency, requests, repeats, warmup))


async def _measure(
    endpoint: Endpoint,
    bodies: Sequence[Mapping[str, object]],
    concurrency: int,
    requests: int,
    repeats: int,
    warmup: int | None,
) -> Load:
    # encoded before any clock runs
    written = [streaming_body(body) for body in bodies]
    async with endpoint.async_session(concurrency) as session:
        before_all = concurrency if warmup is None else warmup
        if before_all:
            await _round(session, written, concurrency, before_all)
        before = read_counters(endpoint)
        rounds = [await _round(session, written, concurrency, requests) for _ in range(repeats)]
        return load_of(concurrency, rounds, [(before, read_counters(endpoint))])


async def _round(session: aiohttp.ClientSession, written: Sequence[bytes], concurrency: int, requests: int) -> Round:
    queue = itertools.islice(itertools.cycle(written), requests)
    started = time.perf_counter()
    clients = [asyncio.create_task(_client(session, queue)) for _ in range(min(concurrency, requests))]
    answers = await asyncio.gather(*clients)
    return Round(tuple(itertools.chain.from_iterable(answers)), time.perf_counter() - started)


async def _client(session: aiohttp.ClientSession, queue: Iterator[bytes]) -> list[TimedCompletion]:
    return [await time_completion(session, body) for body in queue]


async def timed_round(requests: Iterable[Awaitable[TimedCompletion]]) -> Round:
    """Requests that are sent at the same time."""
    started = time.perf_counter()
    answers = await asyncio.gather(*requests)
    return Round(tuple(answers), time.perf_counter() - started)


Readings = tuple[Metrics | None, Metrics | None]  # the counters of an engine before and after requests


def read_counters(endpoint: Endpoint) -> Metrics | None:
    """The counters of the engine; `None` if it has none, or hides them."""
    try:
        return endpoint.metrics()
    except (EndpointError, ValueError):
        # another engine, or a proxy that hides /metrics or answers with a page of HTML
        return None


def load_of(concurrency: int, rounds: Sequence[Round], readings: Sequence[Readings]) -> Load:
    """Rounds with what the engine counted between the readings."""
    known = [(before, after) for before, after in readings if before is not None and after is not None]
    if len(known) < len(readings):
        return Load(concurrency, tuple(rounds), None)
    drafts = [after.drafts - before.drafts for before, after in known]
    positions = zip_longest(*(one.accepted_by_position for one in drafts), fillvalue=0)
    counted = SpecCounters(
        sum(one.drafts for one in drafts),
        sum(one.draft_tokens for one in drafts),
        sum(one.accepted_tokens for one in drafts),
        tuple(map(sum, positions)),
    )
    hits = [
        after.cached_tokens - before.cached_tokens
        for before, after in known
        if before.cached_tokens is not None and after.cached_tokens is not None
    ]
    return Load(concurrency, tuple(rounds), counted, max(sum(hits), 0) if hits else None)
