"""Recording rules: the same names for all engines, so that alerts and dashboards use no name of an engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dflash_deploy.monitoring.baseline import BASELINE, CONCURRENCY, SPEEDUP
from dflash_deploy.monitoring.front import FRONT
from dflash_deploy.monitoring.labels import BY_TARGET, DEPLOYMENT, SLOW_WINDOW, WINDOW
from dflash_deploy.monitoring.machine import MACHINE
from dflash_deploy.monitoring.rule import Recording, RuleGroup
from dflash_deploy.serve.engines import ENGINES
from dflash_deploy.serve.engines.counters import MetricNames

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def groups() -> tuple[RuleGroup, ...]:
    """All recording rules: one group for each set of metric names, then those that read only recorded series."""
    prefixes = {engine.metrics.prefix: engine.metrics for engine in ENGINES.values()}
    return (
        *(RuleGroup(f"dflash-{prefix}", tuple(_of_engine(names))) for prefix, names in prefixes.items()),
        RuleGroup("dflash-derived", DERIVED),
        RuleGroup("dflash-gateway", GATEWAY),
        RuleGroup("dflash-machine", MACHINE),
        RuleGroup("dflash-front", FRONT),
    )


@dataclass(frozen=True)
class _Source:
    """One engine's metrics as parts of expressions."""

    names: MetricNames

    def metric(self, name: str) -> str:
        return f"{self.names.prefix}:{name}"

    def rate(self, name: str, *further: str) -> str:
        """A counter's increase per second, by engine and by further labels."""
        by = ", ".join((BY_TARGET, *further))
        return f"sum by ({by}) (rate({self.metric(name)}[{WINDOW}]))"

    def gauge(self, name: str, how: str) -> str:
        return f"{how} by ({BY_TARGET}) ({self.metric(name)})"

    def recorded(self, record: str, expr: str, unit: str, says: str) -> Recording:
        return Recording(f"dflash:{record}", expr, unit, says, self.names.prefix)


def _of_engine(names: MetricNames) -> Iterator[Recording]:
    of = _Source(names)
    yield of.recorded("tokens_per_second", of.rate(names.generated_tokens), "tokens/s", "Generated tokens per second.")
    yield of.recorded("prompt_tokens_per_second", of.rate(names.prompt_tokens), "tokens/s", "Prompt tokens per second.")
    says = "Steps, or tokens, that the engine computes per second; 0 means that it computes nothing."
    yield of.recorded("steps_per_second", of.rate(names.steps), "1/s", says)
    yield of.recorded("running", of.gauge(names.running, "sum"), "requests", "Running requests.")
    yield of.recorded("queue", of.gauge(names.waiting, "sum"), "requests", "Waiting requests.")
    if names.kv_cache_usage:
        usage = of.gauge(names.kv_cache_usage, "max")
        yield of.recorded("kv_usage", usage, "share", "Used share of the KV cache, 0 to 1.")
    if names.preemptions:
        says = "Requests per second that lose their place in the KV cache and are computed again."
        yield of.recorded("preemptions_per_second", of.rate(names.preemptions), "1/s", says)
    yield from _drafts(of)
    yield from _times(of)


def _drafts(of: _Source) -> Iterator[Recording]:
    names = of.names
    drafts = of.rate(names.drafts)
    yield of.recorded("drafts_per_second", drafts, "1/s", "Steps with draft tokens per second.")
    drafted = of.rate(names.draft_tokens) if names.draft_tokens else ""
    if not drafted:
        drafted = f"{drafts} * ({of.gauge(names.step_tokens, 'max')} - 1)"
    yield of.recorded("draft_tokens_per_second", drafted, "tokens/s", "Draft tokens per second.")
    accepted = of.rate(names.accepted_tokens) if names.accepted_tokens else ""
    if not accepted:
        accepted = f"clamp_min({of.rate(names.generated_tokens)} - {drafts}, 0)"
    yield of.recorded("accepted_tokens_per_second", accepted, "tokens/s", "Accepted draft tokens per second.")
    if names.accepted_by_position:
        accepted = of.rate(names.accepted_by_position, "position")
        share = f"{accepted} / on ({BY_TARGET}) group_left () ({drafts} > 0)"
        says = "Share of drafts whose token at this position was accepted; the first position is 0."
        yield of.recorded("acceptance_rate_by_position", share, "share", says)


def _times(of: _Source) -> Iterator[Recording]:
    names = of.names
    histograms = {
        "ttft_seconds": (names.ttft, "Time to first token"),
        "tpot_seconds": (names.tpot, "Time per output token"),
        "queue_seconds": (names.queue_time, "Time in the queue"),
    }
    for record, (name, says) in histograms.items():
        for quantile, value in QUANTILES.items() if name else ():
            buckets = f"sum by ({BY_TARGET}, le) (rate({of.metric(name)}_bucket[{SLOW_WINDOW}]))"
            expr = f"histogram_quantile({value}, {buckets})"
            yield of.recorded(f"{record}:{quantile}", expr, "s", f"{says}, {quantile} of five minutes.")
    seconds, tokens = names.tpot_counters or (f"{names.tpot}_sum", f"{names.tpot}_count")
    mean = f"{of.rate(seconds)} / ({of.rate(tokens)} > 0)"
    yield of.recorded("tpot_seconds:mean", mean, "s", "Time per output token, mean.")


DERIVED = (
    Recording(
        "dflash:acceptance_length",
        "1 + dflash:accepted_tokens_per_second / (dflash:drafts_per_second > 0)",
        "tokens",
        "Acceptance length: mean tokens per step, the target's own included.",
    ),
    Recording(
        "dflash:acceptance_rate",
        "dflash:accepted_tokens_per_second / (dflash:draft_tokens_per_second > 0)",
        "share",
        "Share of draft tokens that were accepted.",
    ),
    Recording(
        "dflash:wasted_draft_tokens_per_second",
        "dflash:draft_tokens_per_second - dflash:accepted_tokens_per_second",
        "tokens/s",
        "Draft tokens per second that were rejected.",
    ),
    Recording(
        "dflash:load",
        f"dflash:running / on ({DEPLOYMENT}) group_left () dflash:limit:queue",
        "share",
        "Running requests as a share of the most that the engine runs together.",
    ),
    Recording(
        CONCURRENCY,
        # an engine without requests has no concurrency to be compared at
        f"avg_over_time((dflash:running > 0)[{WINDOW}:15s])",
        "requests",
        "Running requests, mean of the readings in which there were any.",
    ),
    Recording(
        SPEEDUP,
        f"{BASELINE} / (dflash:tpot_seconds:mean > 0)",
        "ratio",
        "Speed-up over the baseline of `bench --baseline`: time per output token without speculative decoding, over "
        "that now.",
    ),
)
"""Rules that read recorded series only."""

GATEWAY = (
    Recording(
        "dflash:up",
        f'min by ({BY_TARGET}) (up{{{DEPLOYMENT}!="",job="dflash"}})',
        "0 or 1",
        "Whether /metrics answers.",
    ),
    Recording(
        "dflash:start_time_seconds",
        f"max by ({BY_TARGET}) (dflash_start_time_seconds)",
        "s",
        "When the engine was started, in seconds since 1970.",
    ),
    Recording(
        "dflash:key:requests_per_second",
        f"sum by ({BY_TARGET}, name, status) (rate(dflash_key_requests_total[{WINDOW}]))",
        "1/s",
        "Requests per second by the name of the key and HTTP status.",
    ),
    Recording(
        "dflash:key:prompt_tokens_per_second",
        f"sum by ({BY_TARGET}, name) (rate(dflash_key_prompt_tokens_total[{WINDOW}]))",
        "tokens/s",
        "Tokens read per second by the name of the key.",
    ),
    Recording(
        "dflash:key:tokens_per_second",
        f"sum by ({BY_TARGET}, name) (rate(dflash_key_generation_tokens_total[{WINDOW}]))",
        "tokens/s",
        "Generated tokens per second by the name of the key.",
    ),
    Recording(
        "dflash:refused_per_second",
        f"sum by ({BY_TARGET}) (rate(dflash_refused_requests_total[{WINDOW}]))",
        "1/s",
        "Requests per second that were refused because they had no valid key.",
    ),
    Recording(
        "dflash:key:in_flight",
        f"sum by ({BY_TARGET}, name) (dflash_key_requests_in_flight)",
        "requests",
        "Requests in flight by the name of the key.",
    ),
)
"""Rules for what the gateway in front of each engine counts."""
