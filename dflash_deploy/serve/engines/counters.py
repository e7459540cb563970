"""The counters of engines in /metrics: samples, their names, and drafts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class MetricSample:
    """One sample of /metrics. `position` is that of a draft token, `None` for all other samples."""

    name: str
    value: float
    position: int | None = None


@dataclass(frozen=True)
class SpecCounters:
    """Totals since the engine started, or between two readings. SGLang has no counts by position."""

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_by_position: tuple[int, ...] = ()

    def __sub__(self, earlier: SpecCounters) -> SpecCounters:
        if earlier.drafts > self.drafts or len(earlier.accepted_by_position) != len(self.accepted_by_position):
            # the first reading after a start has no positions yet; a restart sets all counters to zero
            earlier = SpecCounters(accepted_by_position=(0,) * len(self.accepted_by_position))
        positions = zip(self.accepted_by_position, earlier.accepted_by_position, strict=True)
        return SpecCounters(
            self.drafts - earlier.drafts,
            self.draft_tokens - earlier.draft_tokens,
            self.accepted_tokens - earlier.accepted_tokens,
            tuple(now - then for now, then in positions),
        )

    @property
    def acceptance_length(self) -> float | None:
        """Mean tokens per step, the target's own included; `None` without drafts."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts else None

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """The share of drafts whose token at each position was accepted, first position first."""
        return tuple(count / self.drafts for count in self.accepted_by_position) if self.drafts else ()


@dataclass(frozen=True)
class MetricNames:
    """Names in /metrics without the engine's prefix; an empty one is not exported."""

    prefix: str
    generated_tokens: str
    running: str
    waiting: str
    kv_cache_usage: str = ""

    def total(self, samples: Iterable[MetricSample], name: str) -> int:
        """The sum of a metric over all engines of the server."""
        return int(sum(self.each(samples, name)))

    def each(self, samples: Iterable[MetricSample], name: str) -> list[float]:
        """A metric of every engine of the server."""
        wanted = f"{self.prefix}:{name}"
        return [sample.value for sample in samples if sample.name == wanted and sample.position is None]
