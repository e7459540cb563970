"""What an engine counts, as its /metrics shows it: vLLM, SGLang and llama.cpp, told apart by the prefix of the names.

Sources: vllm/v1/spec_decode/metrics.py and vllm/v1/metrics/loggers.py (0.32, 0.33);
sglang/srt/observability/metrics_collector.py (0.5.23); tools/server/server-task.cpp of llama.cpp (b11434). The last one
took vLLM's names for drafts. A step is one draft; the mean acceptance length counts the target's own token:
1 + accepted / drafts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from dflash_deploy.serve.engines import ENGINES
from dflash_deploy.serve.engines.counters import MetricSample, SpecCounters


@dataclass(frozen=True)
class Metrics:
    """One reading: whose it is (`None`: of no engine that is known here), drafts, tokens made, requests at work.

    `waiting` are requests that wait for a slot; `cache` is the used share of the KV cache: llama.cpp
    does not tell it (`None`).
    """

    engine: str | None
    drafts: SpecCounters
    generated_tokens: int
    running: int
    waiting: int = 0
    cache: float | None = None


def read_metrics(exposition: str) -> Metrics:
    """Read the text of /metrics, all engines of the server added up. Raises ValueError if it is not such a text."""
    samples = [
        MetricSample(sample.name, sample.value, _position(sample.labels))
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
    ]
    prefixes = {sample.name.partition(":")[0] for sample in samples}
    engine = next((engine for engine in ENGINES.values() if engine.metrics.prefix in prefixes), None)
    if engine is None:
        return Metrics(None, SpecCounters(), 0, 0)
    names = engine.metrics
    return Metrics(
        engine.name,
        engine.drafts(samples),
        names.total(samples, names.generated_tokens),
        names.total(samples, names.running),
        names.total(samples, names.waiting),
        # of several engines, the fullest
        max(names.each(samples, names.kv_cache_usage), default=None) if names.kv_cache_usage else None,
    )


def read_counters(exposition: str) -> SpecCounters:
    """The counters of speculative decoding; all zero without a drafter."""
    return read_metrics(exposition).drafts


def _position(labels: Mapping[str, str]) -> int | None:
    written = labels.get("position")
    return None if written is None else int(written)
