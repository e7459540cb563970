"""The counters of speculative decoding, as vLLM shows them at /metrics.

Names: vllm/v1/spec_decode/metrics.py. A step is one draft; the mean acceptance length counts the target's own token:
1 + accepted / drafts.
"""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

_PREFIX = "vllm:spec_decode_num_"


@dataclass(frozen=True)
class SpecCounters:
    """Totals since the engine started, or between two readings."""

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_by_position: tuple[int, ...] = ()

    def __sub__(self, earlier: SpecCounters) -> SpecCounters:
        if earlier.drafts > self.drafts or len(earlier.accepted_by_position) != len(self.accepted_by_position):
            # the first reading after a start has no positions yet; after a restart all begins at zero again
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
        """Mean tokens per step, the target's own included; `None` where no draft was made."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts else None

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """The share of drafts whose token at each position was accepted, first position first."""
        return tuple(count / self.drafts for count in self.accepted_by_position) if self.drafts else ()


def read_counters(exposition: str) -> SpecCounters:
    """Read the text of /metrics. All engines of the server are added up; without a drafter all is zero."""
    totals: dict[str, float] = {}
    positions: dict[int, float] = {}
    for family in text_string_to_metric_families(exposition):
        if not family.name.startswith(_PREFIX):
            continue
        for sample in family.samples:
            if "position" in sample.labels and sample.name.endswith("_total"):
                position = int(sample.labels["position"])
                positions[position] = positions.get(position, 0) + sample.value
            else:
                totals[sample.name] = totals.get(sample.name, 0) + sample.value
    return SpecCounters(
        drafts=int(totals.get(f"{_PREFIX}drafts_total", 0)),
        draft_tokens=int(totals.get(f"{_PREFIX}draft_tokens_total", 0)),
        accepted_tokens=int(totals.get(f"{_PREFIX}accepted_tokens_total", 0)),
        accepted_by_position=tuple(int(positions[position]) for position in sorted(positions)),
    )
