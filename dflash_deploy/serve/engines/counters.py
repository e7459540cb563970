"""The counters of engines in /metrics: samples, their names, and drafts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_DRAFTS = "spec_decode_num_"  # the prefix of vLLM's counters of drafts, which llama.cpp took over


@dataclass(frozen=True)
class MetricSample:
    """One sample of /metrics. `position` is that of a draft token, `None` for all other samples."""

    name: str
    value: float
    position: int | None = None


@dataclass(frozen=True)
class SpecCounters:
    """The engine's own counters since it started, or between two readings. SGLang has no counts by position."""

    drafts: int = 0
    """Steps for which tokens were drafted."""
    draft_tokens: int = 0
    """Tokens that were drafted; 0 if the engine does not say how many."""
    accepted_tokens: int = 0
    """Drafted tokens that the target accepted."""
    accepted_by_position: tuple[int, ...] = ()
    """Accepted tokens by position in the draft, the first position first; empty if the engine has no such counters."""
    per_step: int = 0
    """Tokens that each step drafts, if the engine counts steps and not drafted tokens; 0 until it says."""

    def __sub__(self, earlier: SpecCounters) -> SpecCounters:
        if earlier.drafts > self.drafts or len(earlier.accepted_by_position) != len(self.accepted_by_position):
            # the first reading after a start has no positions yet; a restart sets all counters to zero
            earlier = SpecCounters(accepted_by_position=(0,) * len(self.accepted_by_position))
        positions = zip(self.accepted_by_position, earlier.accepted_by_position, strict=True)
        drafts = self.drafts - earlier.drafts
        return SpecCounters(
            drafts,
            drafts * self.per_step if self.per_step else self.draft_tokens - earlier.draft_tokens,
            self.accepted_tokens - earlier.accepted_tokens,
            tuple(now - then for now, then in positions),
            self.per_step,
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
    """Names in /metrics without the engine's prefix; an empty one is not exported.

    `steps` is a counter that grows while the engine computes, before an answer has ended; `computed` the same in
    tokens, if the engine updates `running` too seldom to watch one request. `drafts` counts steps with drafts; without
    `accepted_tokens` each generated token beyond one per step and one per answer (`answers`) was accepted.
    `step_tokens` is a gauge with the positions of a step, the target's own included, if `draft_tokens` are not counted.
    `cached_tokens` counts the tokens of prompts that were in the prefix cache. `ttft`, `tpot` and `queue_time` are
    histograms in seconds; `tpot_counters` are seconds and tokens, whose ratio is the TPOT.
    """

    prefix: str
    generated_tokens: str
    running: str
    waiting: str
    kv_cache_usage: str = ""
    prompt_tokens: str = "prompt_tokens_total"
    cached_tokens: str = "prompt_tokens_cached_total"
    steps: str = ""
    computed: str = ""
    drafts: str = f"{_DRAFTS}drafts_total"
    draft_tokens: str = f"{_DRAFTS}draft_tokens_total"
    step_tokens: str = ""
    answers: str = ""
    accepted_tokens: str = f"{_DRAFTS}accepted_tokens_total"
    accepted_by_position: str = f"{_DRAFTS}accepted_tokens_per_pos_total"
    ttft: str = ""
    tpot: str = ""
    tpot_counters: tuple[str, str] | None = None
    queue_time: str = ""
    preemptions: str = ""

    def total(self, samples: Iterable[MetricSample], name: str) -> int:
        """The sum of a metric over all engines of the server."""
        return int(sum(self.each(samples, name)))

    def each(self, samples: Iterable[MetricSample], name: str) -> list[float]:
        """A metric of every engine of the server."""
        wanted = f"{self.prefix}:{name}"
        return [sample.value for sample in samples if sample.name == wanted and sample.position is None]
