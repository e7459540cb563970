"""Predicts the speed of every number of draft tokens from a few measurements.

Acceptance by position, counted once with the most draft tokens, gives the length of a step with fewer of them. The time
of a step is assumed to grow by the same amount with each draft token, separately at each concurrency.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated

from dflash_deploy.bench.figures import Row
from dflash_deploy.document import AcceptanceLength, Count, Documented, Keywords, Positive, Rate, Seconds, Share, shown

SHORTEST_STEP = 1e-6
"""Shortest step in seconds: a noisy time to the first token must not leave a negative one."""


@dataclass(frozen=True)
class Point(Documented):
    """One setting at one concurrency, as measured."""

    draft_tokens: Count
    """Draft tokens of one step; 0 without the drafter."""
    streams: Positive
    """Concurrency: requests at the same time."""
    tokens_per_s: Rate
    """Tokens per second of all requests together."""
    first_s: Seconds
    """Mean time to the first token, in seconds."""
    answer_tokens: Annotated[float, Keywords(exclusiveMinimum=0)]
    """Mean length of an answer in tokens."""
    length: AcceptanceLength = 1.0
    """Mean tokens per step."""
    by_position: tuple[Share, ...] = ()
    """Share of drafts whose token at each position was accepted; empty without the drafter."""

    @property
    @shown
    def step_s(self) -> Seconds:
        """Time of one step in seconds, without that of the first token."""
        answer_s = self.streams * self.answer_tokens / self.tokens_per_s
        return max((answer_s - self.first_s) * self.length / self.answer_tokens, SHORTEST_STEP)


@dataclass(frozen=True)
class StepTime(Documented):
    """The time of one step at one concurrency: a line through the measured numbers of draft tokens."""

    streams: Positive
    """Concurrency: requests at the same time."""
    base: Seconds
    """Seconds of a step with the drafter and 0 draft tokens."""
    each: Seconds
    """Further seconds for each draft token."""

    def at(self, draft_tokens: int) -> float:
        """Seconds of a step with this number of draft tokens."""
        return self.base + self.each * draft_tokens


def point_of(row: Row, draft_tokens: int) -> Point:
    """A measured row as a point. The row has answers, and counted drafts where there are draft tokens."""
    return Point(
        draft_tokens=draft_tokens,
        streams=row.concurrency,
        tokens_per_s=row.tokens_per_s,
        first_s=row.ttft_ms.mean / 1000 if row.ttft_ms else 0.0,
        answer_tokens=row.output_tokens / row.requests,
        length=row.acceptance_length or 1.0 if draft_tokens else 1.0,
        by_position=row.acceptance_by_position if draft_tokens else (),
    )


@dataclass(frozen=True)
class Model:
    """Tokens/s of every number of draft tokens at each concurrency that was measured.

    `lengths` are the tokens per step by draft tokens, from 0 on; `lines` the times of a step by concurrency.
    """

    points: tuple[Point, ...]
    lengths: tuple[float, ...]
    lines: dict[int, StepTime]

    @property
    def streams(self) -> tuple[int, ...]:
        """The measured concurrency, rising."""
        return tuple(self.lines)

    @property
    def most(self) -> int:
        """The most draft tokens that were measured."""
        return len(self.lengths) - 1

    def plain(self, streams: int) -> float:
        """Tokens/s without the drafter, as measured."""
        return self._at(0, streams)[0].tokens_per_s

    def rate(self, draft_tokens: int, streams: int) -> float:
        """Tokens/s with the drafter running: as measured, or as predicted if it was not.

        With 0 draft tokens it still runs: vLLM's proposer updates its KV cache even then
        (v1/spec_decode/llm_base_proposer.py, 0.32).
        """
        measured = self._at(draft_tokens, streams) if draft_tokens else []
        if measured:
            return measured[0].tokens_per_s
        drafted = [point for point in self.points if point.draft_tokens and point.streams == streams]
        first = statistics.fmean(point.first_s for point in drafted)
        tokens = statistics.fmean(point.answer_tokens for point in drafted)
        steps = tokens / self.lengths[draft_tokens]
        return streams * tokens / (first + steps * self.lines[streams].at(draft_tokens))

    def _at(self, draft_tokens: int, streams: int) -> list[Point]:
        return [point for point in self.points if (point.draft_tokens, point.streams) == (draft_tokens, streams)]


def fitted(points: Iterable[Point]) -> Model:
    """Fit the model: each concurrency was measured without the drafter, and with two numbers of draft tokens."""
    kept = tuple(points)
    drafted = [point for point in kept if point.draft_tokens]
    most = max(point.draft_tokens for point in drafted)
    return Model(
        points=kept,
        lengths=_lengths([point for point in drafted if point.draft_tokens == most], most),
        lines={
            streams: _line(streams, [point for point in drafted if point.streams == streams])
            for streams in sorted({point.streams for point in kept})
        },
    )


def _lengths(points: Sequence[Point], most: int) -> tuple[float, ...]:
    """1, and what the positions up to each one add; a position that was never reached adds nothing."""
    columns = [[(*point.by_position, *(0.0,) * most)[position] for point in points] for position in range(most)]
    return tuple(accumulate((statistics.fmean(column) for column in columns), initial=1.0))


def _line(streams: int, points: Sequence[Point]) -> StepTime:
    """The least-squares line. A draft token cannot make a step shorter: if noise says so, each costs nothing."""
    tokens, seconds = [point.draft_tokens for point in points], [point.step_s for point in points]
    flat = StepTime(streams, statistics.fmean(seconds), 0.0)
    if len(set(tokens)) < 2:
        return flat
    slope, base = statistics.linear_regression(tokens, seconds)
    return flat if slope < 0 else StepTime(streams, max(base, SHORTEST_STEP), slope)
