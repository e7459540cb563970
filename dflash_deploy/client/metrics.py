"""Reads /metrics: the counters of an engine, and the use of each key, which the gateway adds.

The text is in Prometheus's exposition format, and is read within limits. The prefix of the metric names identifies
vLLM, SGLang or llama.cpp. A step is one draft; the mean acceptance length includes the target's token:
`1 + accepted / drafts`.

Sources: vllm/v1/spec_decode/metrics.py and vllm/v1/metrics/loggers.py (0.32, 0.33);
sglang/srt/observability/metrics_collector.py (0.5.23); tools/server/server-task.cpp of llama.cpp (b11434), which uses
vLLM's names for drafts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dflash_deploy.document import Count, Documented
from dflash_deploy.serve.engines import ENGINES
from dflash_deploy.serve.engines.counters import MetricSample, SpecCounters

if TYPE_CHECKING:
    from prometheus_client.samples import Sample


# Characters of a line of /metrics; the longest one of an engine, with all its labels, has some hundreds.
LONGEST_LINE = 10_000


def read_samples(exposition: str) -> Iterator[Sample]:
    """Yield each sample of the text. Raises ValueError if it is not such a text, or if a line is too long."""
    # a third of the imports of `status`, whose engine may not run
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415

    if max(map(len, exposition.splitlines()), default=0) > LONGEST_LINE:
        raise ValueError(f"a line has more than {LONGEST_LINE} characters")
    for family in text_string_to_metric_families(exposition):
        yield from family.samples


_PREFIXES = frozenset(engine.metrics.prefix for engine in ENGINES.values())


@dataclass(frozen=True)
class Metrics:
    """One reading: the engine (`None`: not a supported one), drafts, generated tokens, running requests.

    `waiting` is the number of queued requests, `cache` the used share of the KV cache (`None` for llama.cpp, which does
    not report it), `cached_tokens` counts tokens of prompts that were in the prefix cache (`None`: not reported).
    `computed` grows while requests run (SGLang, which updates `running` every 40 steps); 0 if it is not reported.
    """

    engine: str | None
    drafts: SpecCounters
    generated_tokens: int
    running: int
    waiting: int = 0
    cache: float | None = None
    cached_tokens: int | None = None
    computed: int = 0


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
        int(sum(found)) if (found := names.each(samples, names.cached_tokens)) else None,
        names.total(samples, names.computed) if names.computed else 0,
    )


def _samples(exposition: str) -> Iterator[MetricSample]:
    """Yield the samples of supported engines. Raises ValueError for one that cannot be counted."""
    for sample in read_samples(exposition):
        if sample.name.partition(":")[0] in _PREFIXES:
            yield MetricSample(sample.name, sample.value, _position(sample.labels))


def _position(labels: Mapping[str, str]) -> int | None:
    written = labels.get("position")
    if written is None:
        return None
    if not written.isdecimal() or len(written) > 6:
        raise ValueError(f"a draft position is `{written[:40]}`")
    return int(written)


@dataclass
class KeyUsage(Documented):
    """What one key used since the start of the engine."""

    name: str
    """Name of the key; `owner` is the API key of the deployment."""
    requests: dict[str, Count] = field(default_factory=dict)
    """Number of requests by HTTP status, or `cancelled` if the client left."""
    prompt_tokens: Count = 0
    """Tokens read."""
    generation_tokens: Count = 0
    """Tokens generated."""
    in_flight: Count = 0
    """Requests at this moment."""


def read_key_usage(exposition: str) -> list[KeyUsage]:
    """Read the text of /metrics. Raises ValueError if it is not such a text."""
    ours = "\n".join(line for line in exposition.splitlines() if line.startswith("dflash_key_"))
    found: defaultdict[str, KeyUsage] = defaultdict(lambda: KeyUsage(""))
    for sample in read_samples(f"{ours}\n"):
        if name := sample.labels.get("name", ""):
            found[name].name = name
            _add(found[name], sample.name, sample.labels, int(sample.value))
    return [found[name] for name in sorted(found)]


def _add(used: KeyUsage, counter: str, labels: Mapping[str, str], count: int) -> None:
    match counter:
        case "dflash_key_requests_total":
            used.requests[labels.get("status", "")] = count
        case "dflash_key_prompt_tokens_total":
            used.prompt_tokens = count
        case "dflash_key_generation_tokens_total":
            used.generation_tokens = count
        case "dflash_key_requests_in_flight":
            used.in_flight = count
