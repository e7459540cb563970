"""From the times of single requests to the figures of a measurement.

TTFT, TPOT and ITL are those of vLLM's benchmark (vllm/benchmarks/serve.py, 0.32.0): seconds to the first chunk; seconds
after it for each further token, one figure per request; seconds between chunks, which hold several tokens with a
drafter.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from dflash_deploy.document import (
    AcceptanceLength,
    Count,
    Documented,
    Hidden,
    Milliseconds,
    Positive,
    Rate,
    Ratio,
    Seconds,
    Share,
    shown,
)
from dflash_deploy.errors import BenchmarkMissed
from dflash_deploy.serve.engines.counters import SpecCounters
from dflash_deploy.serve.settings import Settings

if TYPE_CHECKING:
    from dflash_deploy.bench.load import Load
    from dflash_deploy.catalog.speeds import PublishedSpeed
    from dflash_deploy.client.stream import TimedCompletion


# How the drafts of a run are made: not at all, by a drafter, by the target's MTP head, or nothing is known of it.
Speculation = Literal["off", "dflash", "mtp", "unknown"]

# The value of `drafter` in the JSON of a row; `mtp` is a key of its own there.
DRAFTER: Mapping[Speculation, bool | None] = {"off": False, "dflash": True, "mtp": True, "unknown": None}

# The part of a comparison that a row belongs to, in words.
PARTS: Mapping[Speculation, str] = {
    "dflash": "with the drafter",
    "off": "without the drafter",
    "mtp": "with the MTP head",
    "unknown": "as served",
}


# Settings of drafts and sizes, without which a figure means little.
SIZES = (
    Settings.dflash_num_spec_tokens,
    Settings.dflash_spec_schedule,
    Settings.max_model_len,
    Settings.max_num_seqs,
    Settings.max_num_batched_tokens,
    Settings.gpu_memory_utilization,
)


@dataclass(frozen=True)
class Spread(Documented):
    """The distribution of a time over the requests, in milliseconds."""

    mean: Milliseconds
    """Mean."""
    min: Milliseconds
    """Minimum."""
    p25: Milliseconds
    """25th percentile."""
    p50: Milliseconds
    """Median."""
    p75: Milliseconds
    """75th percentile."""
    p95: Milliseconds
    """95th percentile."""
    p99: Milliseconds
    """99th percentile."""
    max: Milliseconds
    """Maximum."""


@dataclass(frozen=True)
class Row(Documented):
    """One workload at one concurrency. Rates are those of all requests together, prompts included."""

    workload: str
    """Name of the workload."""
    concurrency: Positive
    """Requests at the same time."""
    speculation: Hidden[Speculation]
    draft_tokens: Count | None
    """Draft tokens of one step, rounded; 0 if none were drafted, null if the engine does not report them."""
    tokens_per_s: Rate
    """Completion tokens per second: the median of `rounds`."""
    rounds: tuple[Rate, ...]
    """Completion tokens per second of each repeat."""
    speedup: Ratio | None
    """`tokens_per_s` divided by that without speculative decoding; null if both were not measured."""
    requests: Count
    """Requests that were answered."""
    failed: Count
    """Requests that failed."""
    problem: str
    """Why the first of them failed; empty if none did."""
    duration_s: Seconds
    """Seconds of all repeats together."""
    requests_per_s: Rate
    """Answered requests per second."""
    input_tokens: Count
    """Tokens of all prompts."""
    output_tokens: Count
    """Tokens of all answers."""
    ttft_ms: Spread | None
    """Time to the first token, in milliseconds; null if no request was answered."""
    tpot_ms: Spread | None
    """Time per further token of a request, in milliseconds; null if no answer has two tokens."""
    itl_ms: Spread | None
    """Time between chunks of an answer, which can have several tokens, in milliseconds; null if there was one chunk."""
    acceptance_length: AcceptanceLength | None
    """Mean tokens per step, the target's own token included; null if nothing was drafted or counted."""
    acceptance_by_position: tuple[Share, ...]
    """Share of drafts whose token at each position was accepted, the first position first."""
    counted: SpecCounters | None
    """The engine's own counters; null if it has none."""
    cached_share: Share | None = None
    """Share of the prompts' tokens that were in the prefix cache; missing if the engine does not report it."""
    turn: Positive | None = None
    """Turn of the conversations, from 1; missing if the workload has single prompts."""

    @property
    @shown
    def drafter(self) -> bool | None:
        """Whether tokens are drafted, by a drafter or by the target's MTP head; null if that is unknown."""
        return DRAFTER[self.speculation]

    @property
    @shown
    def mtp(self) -> bool:
        """Whether the target's MTP head drafts them."""
        return self.speculation == "mtp"


def at_concurrency(count: int) -> str:
    """A concurrency in words."""
    return f"concurrency {count}"


def row_of(workload: str, load: Load, speculation: Speculation, *, turn: int | None = None) -> Row:
    """The figures of one measurement. Of an unknown endpoint the engine's counters may say whether it drafts."""
    answered = [request for one in load.rounds for request in one.answered]
    asked = [request for one in load.rounds for request in one.requests]
    seconds = sum(one.seconds for one in load.rounds)
    counted = load.counted
    return Row(
        workload=workload,
        concurrency=load.concurrency,
        speculation=_seen(counted) if speculation == "unknown" else speculation,
        draft_tokens=_draft_tokens(counted),
        tokens_per_s=load.median,
        rounds=load.tokens_per_second,
        speedup=None,
        requests=len(answered),
        failed=len(asked) - len(answered),
        problem=next((request.problem for request in asked if request.problem), ""),
        duration_s=seconds,
        requests_per_s=len(answered) / seconds,
        input_tokens=sum(request.prompt_tokens for request in answered),
        output_tokens=sum(request.completion_tokens for request in answered),
        ttft_ms=spread([request.ttft for request in answered]),
        tpot_ms=spread([request.tpot for request in answered if request.tpot is not None]),
        itl_ms=spread([gap for request in answered for gap in request.gaps]),
        acceptance_length=counted.acceptance_length if counted else None,
        acceptance_by_position=counted.acceptance_by_position if counted else (),
        counted=counted,
        cached_share=_cached_share(answered, load.cached),
        turn=turn,
    )


def _cached_share(answered: Sequence[TimedCompletion], counted: int | None) -> float | None:
    """As the answers say, else as the engine counts."""
    said = [request.cached_tokens for request in answered]
    cached = counted if not said or None in said else sum(filter(None, said))
    prompts = sum(request.prompt_tokens for request in answered)
    return None if cached is None or not prompts else round(min(cached / prompts, 1.0), 4)


def _seen(counted: SpecCounters | None) -> Speculation:
    return "unknown" if counted is None else "dflash" if counted.drafts else "off"


def as_counted(row: Row, *, counts_every_draft: bool) -> Row:
    """The row, without the zeros of an engine that makes drafts without reporting them, as a fork may.

    `counts_every_draft`: a zero means that no draft was made.
    """
    if counts_every_draft or row.speculation in {"off", "unknown"} or (row.counted is not None and row.counted.drafts):
        return row
    return replace(row, counted=None, draft_tokens=None)


def _draft_tokens(counted: SpecCounters | None) -> int | None:
    """Draft tokens of a step; if their number depends on the load, the rounded mean. `None`: unknown."""
    if counted is None or (counted.drafts and not counted.draft_tokens):
        return None
    return round(counted.draft_tokens / counted.drafts) if counted.drafts else 0


def spread(seconds: Sequence[float]) -> Spread | None:
    """The distribution of times in seconds; `None` without any."""
    if not seconds:
        return None
    ordered = sorted(second * 1000 for second in seconds)
    low, p25, p50, p75, p95, p99, high = (quantile(ordered, share) for share in (0, 0.25, 0.5, 0.75, 0.95, 0.99, 1))
    return Spread(statistics.fmean(ordered), low, p25, p50, p75, p95, p99, high)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of the ordered values are, interpolated linearly as in numpy."""
    place = share * (len(ordered) - 1)
    below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
    return below + (above - below) * (place - math.floor(place))


# Workloads to compare a published one with, the most similar first. Prompts, lengths and engines differ.
COMPARABLE = {
    "HumanEval": ("humaneval", "code"),
    "MBPP": ("mbpp", "code"),
    "code, raw prompt": ("code",),
    "code, chat template": ("code",),
    "code, 55K tokens of prompt": ("code",),
    "Math500": ("math500", "maths"),
    "GSM8K": ("gsm8k", "maths"),
    "MT-Bench": ("mt-bench", "chat"),
    "short answers": ("chat",),
    "prose, raw prompt": ("prose",),
    "code": ("code",),
    "prose": ("prose",),
    "reasoning": ("maths",),
    "dialogue": ("chat",),
    "code, reasoning, maths, prose": ("code",),
    "contexts of agents": ("code",),
}


@dataclass(frozen=True)
class Beside(Documented):
    """A published measurement, beside the most similar one of this run. Rates are tokens/s of all requests together."""

    workload: str
    """The published workload."""
    concurrency: Positive
    """Requests at the same time, in both."""
    draft_tokens: Positive
    """Published: draft tokens of one step."""
    plain: Rate | None
    """Published: tokens/s without speculative decoding; null if it was not published."""
    dflash: Rate
    """Published: tokens/s with the drafter."""
    acceptance_length: AcceptanceLength | None
    """Published: tokens per step; null if it was not published."""
    source: str
    """Who published it."""
    ours_workload: str
    """Here: the most similar workload."""
    ours_draft_tokens: Count | None
    """Here: draft tokens of one step; null if it was not measured."""
    ours_plain: Rate | None
    """Here: tokens/s without speculative decoding; null if it was not measured."""
    ours_dflash: Rate | None
    """Here: tokens/s with the drafter; null if it was not measured."""
    ours_acceptance_length: AcceptanceLength | None
    """Here: tokens per step; null if it was not measured."""
    condition: str = ""
    """What slowed the GPUs of this machine down, if a figure is below the published one; empty if nothing is known."""


def beside(published: Iterable[PublishedSpeed], rows: Sequence[Row], condition: str = "") -> list[Beside]:
    """The published rows with a measurement to compare. `condition` is what slowed the GPUs of this machine down."""
    ours = {(row.workload, row.concurrency, row.speculation): row for row in rows}
    measured = {(row.workload, row.concurrency) for row in rows}
    pairs = [
        (
            speed,
            next((name for name in COMPARABLE.get(speed.workload, ()) if (name, speed.concurrency) in measured), None),
        )
        for speed in published
    ]
    found = [
        _beside(speed, name, ours.get((name, speed.concurrency, "dflash")), ours.get((name, speed.concurrency, "off")))
        for speed, name in pairs
        if name is not None
    ]
    return [replace(one, condition=condition) if _is_slower(one) else one for one in found]


def _is_slower(one: Beside) -> bool:
    pairs = ((one.ours_plain, one.plain), (one.ours_dflash, one.dflash))
    return any(ours and theirs and ours < theirs for ours, theirs in pairs)


def _beside(speed: PublishedSpeed, workload: str, drafted: Row | None, plain: Row | None) -> Beside:
    return Beside(
        workload=speed.workload,
        concurrency=speed.concurrency,
        draft_tokens=speed.draft_tokens,
        plain=speed.plain,
        dflash=speed.dflash,
        acceptance_length=speed.acceptance_length,
        source=speed.source,
        ours_workload=workload,
        ours_draft_tokens=drafted.draft_tokens if drafted else None,
        ours_plain=plain.tokens_per_s if plain else None,
        ours_dflash=drafted.tokens_per_s if drafted else None,
        ours_acceptance_length=drafted.acceptance_length if drafted else None,
    )


def missed(rows: Sequence[Row], min_speedup: float | None, *, ours: bool) -> BenchmarkMissed | None:
    """The requirement that the rows miss; `None` if they meet all.

    `ours` says that the engine is known to count its drafts.
    """
    failed = [row for row in rows if row.failed]
    if failed:
        count, asked = sum(row.failed for row in failed), sum(row.requests + row.failed for row in rows)
        return BenchmarkMissed(
            f"{count} of {asked} requests failed: {failed[0].problem}",
            hint="the other figures are of answered requests; `dflash-deploy logs` shows the engine's side",
        )
    return _contradicted(rows, ours=ours) or _too_slow(rows, min_speedup)


def _contradicted(rows: Sequence[Row], *, ours: bool) -> BenchmarkMissed | None:
    """The engine's counters contradict what was said of its drafts."""
    for row in rows:
        if row.counted is None:
            continue
        if row.speculation in {"dflash", "mtp"} and ours and not row.counted.drafts:
            return BenchmarkMissed(
                "the engine reported no draft tokens: speculative decoding is off",
                hint="`dflash-deploy up` applies .env; then look for 'speculative' in `dflash-deploy logs`",
            )
        if row.speculation == "off" and row.counted.drafts:
            return BenchmarkMissed(
                f"the engine made {row.counted.drafts} drafts in the run without speculative decoding",
                hint="`dflash-deploy up` applies .env; --baseline-url must name an engine without a drafter",
            )
    return None


def _too_slow(rows: Sequence[Row], min_speedup: float | None) -> BenchmarkMissed | None:
    sped = [row for row in rows if row.speedup is not None and row.speculation != "mtp"]
    slow = [row for row in sped if min_speedup is not None and (row.speedup or 0.0) < min_speedup]
    if not slow:
        return None
    worst = min(slow, key=lambda row: row.speedup or 0.0)
    where = f"{worst.workload}, {at_concurrency(worst.concurrency)}"
    return BenchmarkMissed(
        f"{where}: a speed-up of {worst.speedup:.2f}, not {min_speedup:g}",
        hint=f"fewer draft tokens help at high concurrency: {Settings.dflash_num_spec_tokens} in .env",
    )
