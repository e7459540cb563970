"""The counters of an engine's /metrics. The prefix of the metric names identifies vLLM, SGLang or llama.cpp.

Sources: vllm/v1/spec_decode/metrics.py and vllm/v1/metrics/loggers.py (0.32, 0.33);
sglang/srt/observability/metrics_collector.py (0.5.23); tools/server/server-task.cpp of llama.cpp (b11434), which uses
vLLM's names for drafts. A step is one draft; the mean acceptance length includes the target's token:
1 + accepted / drafts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dflash_deploy.client.exposition import read_samples
from dflash_deploy.serve.engines import ENGINES
from dflash_deploy.serve.engines.counters import MetricSample, SpecCounters

_PREFIXES = frozenset(engine.metrics.prefix for engine in ENGINES.values())


@dataclass(frozen=True)
class Metrics:
    """One reading: the engine (`None`: not a supported one), drafts, generated tokens, running requests.

    `waiting` is the number of queued requests, `cache` the used share of the KV cache (`None` for llama.cpp, which does
    not report it).
    """

    engine: str | None
    drafts: SpecCounters
    generated_tokens: int
    running: int
    waiting: int = 0
    cache: float | None = None


def read_metrics(exposition: str) -> Metrics:
    """Read the text of /metrics, all engines of the server added up. Raises ValueError if it is not such a text."""
    samples = list(_samples(exposition))
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


def _samples(exposition: str) -> Iterator[MetricSample]:
    """Yield the samples of supported engines. Raises ValueError for one that cannot be counted."""
    for sample in read_samples(exposition):
        if sample.name.partition(":")[0] in _PREFIXES:
            yield MetricSample(sample.name, sample.value, _position(sample.labels))


def read_counters(exposition: str) -> SpecCounters:
    """The counters of speculative decoding; all zero without a drafter."""
    return read_metrics(exposition).drafts


def _position(labels: Mapping[str, str]) -> int | None:
    written = labels.get("position")
    if written is None:
        return None
    if not written.isdecimal() or len(written) > 6:
        raise ValueError(f"a draft position is `{written[:40]}`")
    return int(written)
