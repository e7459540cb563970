"""Predicts the speed of every number of draft tokens from a few measurements.

Acceptance by position, counted once with the most draft tokens, gives the length of a step with fewer of them. The time
of a step is assumed to grow by the same amount with each draft token, separately at each concurrency.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate

from dflash_deploy.bench.figures import Row

SHORTEST_STEP = 1e-6
"""Shortest step in seconds: a noisy time to the first token must not leave a negative one."""


@dataclass(frozen=True)
class Point:
    """One setting at one concurrency, `streams`. `draft_tokens` is 0 without the drafter.

    `tokens_per_s` is of all requests together, `first_s` the mean time to the first token, `answer_tokens` the mean
    length of an answer, `length` the mean tokens of a step, `by_position` the acceptance, first position first.
    """

    draft_tokens: int
    streams: int
    tokens_per_s: float
    first_s: float
    answer_tokens: float
    length: float = 1.0
    by_position: tuple[float, ...] = ()

    @property
    def step_s(self) -> float:
        """Seconds of one step, without those of the first token."""
        answer_s = self.streams * self.answer_tokens / self.tokens_per_s
        return max((answer_s - self.first_s) * self.length / self.answer_tokens, SHORTEST_STEP)

    def document(self) -> dict[str, object]:
        """The point for `--json`."""
        return asdict(self) | {"step_s": self.step_s}


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step: `base` with the drafter running but 0 draft tokens, and `each` more for every draft token."""

    base: float
    each: float

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
            streams: _line([(point.draft_tokens, point.step_s) for point in drafted if point.streams == streams])
            for streams in sorted({point.streams for point in kept})
        },
    )


def _lengths(points: Sequence[Point], most: int) -> tuple[float, ...]:
    """1, and what the positions up to each one add; a position that was never reached adds nothing."""
    columns = [[(*point.by_position, *(0.0,) * most)[position] for point in points] for position in range(most)]
    return tuple(accumulate((statistics.fmean(column) for column in columns), initial=1.0))


def _line(times: Sequence[tuple[int, float]]) -> StepTime:
    """The least-squares line. A draft token cannot make a step shorter: if noise says so, each costs nothing."""
    mean = statistics.fmean(seconds for _, seconds in times)
    if len({draft_tokens for draft_tokens, _ in times}) < 2:
        return StepTime(mean, 0.0)
    slope, base = statistics.linear_regression(*zip(*times, strict=True))
    if slope < 0:
        return StepTime(mean, 0.0)
    return StepTime(max(base, SHORTEST_STEP), slope)
