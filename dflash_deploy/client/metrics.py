"""What an engine counts, as its /metrics shows it: vLLM, SGLang and llama.cpp, told apart by the prefix of the names.

Sources: vllm/v1/spec_decode/metrics.py and vllm/v1/metrics/loggers.py (0.32, 0.33);
sglang/srt/observability/metrics_collector.py (0.5.23); tools/server/server-task.cpp of llama.cpp (b11434). The last one
took vLLM's names for drafts. A step is one draft; the mean acceptance length counts the target's own token:
1 + accepted / drafts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from prometheus_client.parser import text_string_to_metric_families

MetricsOf = Literal["vllm", "sglang", "llamacpp"]

_DRAFTS = "spec_decode_num_"
_GENERATED = {
    "vllm": "generation_tokens_total",
    "sglang": "generation_tokens_total",
    "llamacpp": "tokens_predicted_total",
}
_RUNNING = {"vllm": "num_requests_running", "sglang": "num_running_reqs", "llamacpp": "requests_processing"}
_WAITING = {"vllm": "num_requests_waiting", "sglang": "num_queue_reqs", "llamacpp": "requests_deferred"}
_CACHE = {"vllm": "kv_cache_usage_perc", "sglang": "token_usage"}


@dataclass(frozen=True)
class SpecCounters:
    """Totals since the engine started, or between two readings. SGLang does not count by position."""

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


@dataclass(frozen=True)
class Metrics:
    """One reading: whose it is (`None`: of no engine that is known here), drafts, tokens made, requests at work.

    `waiting` are requests that wait for a slot; `cache` is the used share of the KV cache: llama.cpp
    does not tell it (`None`).
    """

    engine: MetricsOf | None
    drafts: SpecCounters
    generated_tokens: int
    running: int
    waiting: int = 0
    cache: float | None = None


def read_metrics(exposition: str) -> Metrics:
    """Read the text of /metrics. All engines of the server are added up. Raises ValueError where it is no such text."""
    totals: dict[str, float] = {}
    positions: dict[int, float] = {}
    samples = [sample for family in text_string_to_metric_families(exposition) for sample in family.samples]
    for sample in samples:
        if "position" in sample.labels and _DRAFTS in sample.name and sample.name.endswith("_total"):
            position = int(sample.labels["position"])
            positions[position] = positions.get(position, 0) + sample.value
        else:
            totals[sample.name] = totals.get(sample.name, 0) + sample.value
    engine = _engine(totals)
    if engine is None:
        return Metrics(None, SpecCounters(), 0, 0)
    if engine == "sglang":
        blocks = [sample.value for sample in samples if sample.name == "sglang:spec_num_draft_tokens"]
        drafts = _sglang_drafts(totals, int(max(blocks, default=1)))
    else:
        drafts = SpecCounters(
            drafts=int(totals.get(f"{engine}:{_DRAFTS}drafts_total", 0)),
            draft_tokens=int(totals.get(f"{engine}:{_DRAFTS}draft_tokens_total", 0)),
            accepted_tokens=int(totals.get(f"{engine}:{_DRAFTS}accepted_tokens_total", 0)),
            accepted_by_position=tuple(int(positions[position]) for position in sorted(positions)),
        )
    return Metrics(
        engine,
        drafts,
        int(totals.get(f"{engine}:{_GENERATED[engine]}", 0)),
        int(totals.get(f"{engine}:{_RUNNING[engine]}", 0)),
        int(totals.get(f"{engine}:{_WAITING[engine]}", 0)),
        # of several engines, the fullest
        max((sample.value for sample in samples if sample.name == f"{engine}:{_CACHE.get(engine)}"), default=None),
    )


def read_counters(exposition: str) -> SpecCounters:
    """The counters of speculative decoding alone; without a drafter all is zero."""
    return read_metrics(exposition).drafts


def _engine(totals: Iterable[str]) -> MetricsOf | None:
    prefixes = {name.partition(":")[0] for name in totals}
    known: tuple[MetricsOf, ...] = ("vllm", "sglang", "llamacpp")
    return next((engine for engine in known if engine in prefixes), None)


def _sglang_drafts(totals: Mapping[str, float], block: int) -> SpecCounters:
    """SGLang counts verifications and generated tokens; its acceptance length is the one over the other.

    So is `spec_accept_length` of its answers (managers/tokenizer_manager.py): the first token of an answer, which no
    verification brings, is counted too. `block` counts the anchor of a block too.
    """
    drafts = int(totals.get("sglang:spec_verify_calls_total", 0))
    if not drafts:
        return SpecCounters()
    generated = int(totals.get("sglang:generation_tokens_total", 0))
    return SpecCounters(drafts, drafts * max(block - 1, 0), max(generated - drafts, 0))
