"""The service of an engine: measured, from rows of `bench`, or as the speed model expects it.

A client of a closed loop waits for an answer

    latency + (1 + (answer - 1) / tokens per step) x step + prompts x seconds of a prompt

where `prompts` counts the prompts of all requests in flight. Further steps of the client's own prompt take as long as
the steps of the other requests. The measured times to the first token and for each further one give this sum, so each
row gives the time of a step. Requests in flight are counted by Little's law: at the end of a round some clients have
nothing to send.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from dflash_deploy.catalog.hardware import Profile
from dflash_deploy.catalog.models import ModelPair
from dflash_deploy.features.capacity.simulation import SHORTEST_STEP, Service, rising
from dflash_deploy.intake.documents import BenchRow
from dflash_deploy.plan.speed import acceptance_range, prompt_token_seconds, step_seconds

TELLING = 1.5
"""Ratio of the longest to the shortest mean prompt from which a line through their times separates prompt and rest."""


@dataclass(frozen=True)
class _Point:
    """The means of one row: requests in `flight`, seconds to the first token and for each next one."""

    workload: str
    concurrency: int
    flight: float
    prompt: float
    answer: float
    first_s: float
    next_s: float
    length: float
    requests: int

    def steps(self, prompt_steps: int) -> float:
        """Steps of a prompt and its answer. In further steps of the prompt only the other requests have a share."""
        return 1 + max(self.answer - 1, 0) / self.length + (prompt_steps - 1) * (1 - 1 / self.flight)

    @property
    def seconds(self) -> float:
        """From the request to the last token."""
        return self.first_s + max(self.answer - 1, 0) * self.next_s


def measured_service(
    rows: Sequence[BenchRow],
    *,
    most_sequences: int,
    chunk: int,
    prompt_steps: int = 1,
    prompt_token_s: float | None = None,
) -> Service | None:
    """The service behind rows of one way of drafting; `None` if no row has answers of more than one token.

    No row may have had more clients than the engine serves at a time. `prompt_token_s` is what the speed
    model expects; it is used if all measured prompts are about equally long, and only if the measured times allow it.
    """
    points = [_point(row) for row in rows if row.ttft_ms and row.tpot_ms and row.requests]
    if not points:
        return None
    lowest = min(point.concurrency for point in points)
    alone = [point for point in points if point.concurrency == lowest]
    shortest = statistics.fmean(point.next_s * point.length for point in alone)
    prompt_s = _prompt_token_s(alone, shortest, prompt_token_s)
    latency = statistics.fmean(max(one.first_s - shortest - prompt_s * one.prompt * one.flight, 0.0) for one in alone)
    steps = [
        (
            statistics.fmean(point.flight for point in same),
            statistics.fmean(_step(point, prompt_steps, latency, prompt_s) for point in same),
        )
        for same in ([one for one in points if one.concurrency == c] for c in {point.concurrency for point in points})
    ]
    return Service(
        steps=rising(steps),
        tokens_per_step=_length(points),
        prompt_token_s=prompt_s,
        latency_s=latency,
        most_sequences=most_sequences,
        chunk=chunk,
        prompt_steps=prompt_steps,
    )


def prompts_tell(rows: Sequence[BenchRow]) -> bool:
    """Whether the prompts differ enough in length to measure what a token of them costs."""
    lengths = [row.input_tokens / row.requests for row in rows if row.requests]
    return bool(lengths) and max(lengths) >= TELLING * max(min(lengths), 1.0)


def _point(row: BenchRow) -> _Point:
    assert row.ttft_ms is not None  # noqa: S101 - rows without times are left out before
    assert row.tpot_ms is not None  # noqa: S101
    first_s, next_s, answer = row.ttft_ms.mean / 1000, row.tpot_ms.mean / 1000, row.output_tokens / row.requests
    seconds = first_s + max(answer - 1, 0) * next_s
    return _Point(
        workload=row.workload,
        concurrency=row.concurrency,
        flight=min(max(row.requests * seconds / row.duration_s, 1.0), float(row.concurrency)),
        prompt=row.input_tokens / row.requests,
        answer=answer,
        first_s=first_s,
        next_s=next_s,
        length=row.acceptance_length or 1.0,
        requests=row.requests,
    )


def _prompt_token_s(alone: Sequence[_Point], step_s: float, expected: float | None) -> float:
    """Seconds for each token of a prompt: a line through several lengths, else the expected ones.

    Without either all of the time to the first token beyond a step is the prompts', which is an upper bound. The
    prompts of all requests in flight are assumed to be computed together; with one client there is only one.
    """
    lengths = [point.prompt * point.flight for point in alone]
    if max(lengths) >= TELLING * max(min(lengths), 1.0):
        slope = statistics.linear_regression(lengths, [point.first_s for point in alone]).slope
        return max(slope, 0.0)
    bound = statistics.fmean(
        max(point.first_s - step_s, 0.0) / max(length, 1.0) for point, length in zip(alone, lengths, strict=True)
    )
    return bound if expected is None else min(expected, bound)


def _step(point: _Point, prompt_steps: int, latency_s: float, prompt_s: float) -> float:
    """Seconds of a step at the concurrency of a row."""
    prompts = point.flight * point.prompt * prompt_s
    return max((point.seconds - latency_s - prompts) / point.steps(prompt_steps), SHORTEST_STEP)


def _length(points: Sequence[_Point]) -> float:
    """Tokens per step over all requests."""
    tokens = sum(point.requests * point.answer for point in points)
    return tokens / sum(point.requests * point.answer / point.length for point in points)


def expected_service(
    profile: Profile, pair: ModelPair, *, draft_tokens: int, most_sequences: int, chunk: int, prompt_steps: int = 1
) -> Service | None:
    """The service with `draft_tokens`, 0 without a drafter; `None` on a machine without a GPU.

    The acceptance length is the geometric mean of the expected range. Nothing is known of the time outside of the
    engine: it is 0.
    """
    if profile.match.gpus == 0:
        return None
    low, high = acceptance_range(pair, draft_tokens) if draft_tokens else (1.0, 1.0)
    places = {1, most_sequences, *takewhile(lambda number: number < most_sequences, (2**power for power in range(20)))}
    steps = [
        (float(number), step_seconds(profile, pair, concurrency=number, draft_tokens=draft_tokens)) for number in places
    ]
    return Service(
        steps=rising(steps),
        tokens_per_step=(low * high) ** 0.5,
        prompt_token_s=prompt_token_seconds(profile, pair),
        latency_s=0.0,
        most_sequences=most_sequences,
        chunk=chunk,
        prompt_steps=prompt_steps,
    )
