"""From the times of single requests to the figures of a measurement.

TTFT, TPOT and ITL are those of vLLM's benchmark (vllm/benchmarks/serve.py, 0.32.0): seconds to the first chunk; seconds
after it for each further token, one figure per request; seconds between chunks, which hold several tokens with a
drafter.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from dflash_deploy.errors import BenchmarkMissed
from dflash_deploy.serve.settings import Settings

if TYPE_CHECKING:
    from dflash_deploy.bench.load import Load
    from dflash_deploy.catalog.speeds import PublishedSpeed
    from dflash_deploy.client.stream import TimedCompletion
    from dflash_deploy.serve.engines.counters import SpecCounters


Speculation = Literal["off", "dflash", "mtp", "unknown"]
"""How the drafts of a run are made: not at all, by a drafter, by the target's MTP head, or nothing is known of it."""

DRAFTER: Mapping[Speculation, bool | None] = {"off": False, "dflash": True, "mtp": True, "unknown": None}
"""The value of `drafter` in the JSON of a row; `mtp` is a key of its own there."""

PARTS: Mapping[Speculation, str] = {
    "dflash": "with the drafter",
    "off": "without the drafter",
    "mtp": "with the MTP head",
    "unknown": "as served",
}
"""The part of a comparison that a row belongs to, in words."""


SIZES = (
    Settings.dflash_num_spec_tokens,
    Settings.dflash_spec_schedule,
    Settings.max_model_len,
    Settings.max_num_seqs,
    Settings.max_num_batched_tokens,
    Settings.gpu_memory_utilization,
)
"""Settings of drafts and sizes, without which a figure means little."""


@dataclass(frozen=True)
class Spread:
    """The distribution of a time over the requests, in milliseconds."""

    mean: float
    min: float
    p25: float
    p50: float
    p75: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True)
class Row:
    """One workload at one concurrency. Rates are those of all requests together, prefill included.

    `rounds` has the completion tokens per second of every repeat and `tokens_per_s` their median; all other figures are
    over all repeats. `draft_tokens` are those of one step: 0 if none was made; `None`, as the acceptance, if the engine
    does not report them. `speedup` is the ratio of `tokens_per_s` to that without speculative decoding, if both were
    measured.
    """

    workload: str
    concurrency: int
    speculation: Speculation
    draft_tokens: int | None
    tokens_per_s: float
    rounds: tuple[float, ...]
    speedup: float | None
    requests: int
    failed: int
    problem: str
    duration_s: float
    requests_per_s: float
    input_tokens: int
    output_tokens: int
    ttft_ms: Spread | None
    tpot_ms: Spread | None
    itl_ms: Spread | None
    acceptance_length: float | None
    acceptance_by_position: tuple[float, ...]
    counted: SpecCounters | None

    def document(self) -> dict[str, object]:
        """The row for `--json`, where `drafter` and `mtp` say how its drafts were made."""
        row = asdict(self)
        del row["speculation"]
        return row | {"drafter": DRAFTER[self.speculation], "mtp": self.speculation == "mtp"}


def at_concurrency(count: int) -> str:
    """A concurrency in words."""
    return f"concurrency {count}"


def speculation_of(row: Mapping[str, Any]) -> Speculation:
    """How the drafts of a row of `--json` were made."""
    if row["mtp"]:
        return "mtp"
    return next(name for name, drafter in DRAFTER.items() if drafter is row["drafter"])


def row_of(workload: str, load: Load, speculation: Speculation) -> Row:
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
        tpot_ms=spread(_tpots(answered)),
        itl_ms=spread([gap for request in answered for gap in request.gaps]),
        acceptance_length=counted.acceptance_length if counted else None,
        acceptance_by_position=counted.acceptance_by_position if counted else (),
        counted=counted,
    )


def _seen(counted: SpecCounters | None) -> Speculation:
    return "unknown" if counted is None else "dflash" if counted.drafts else "off"


def as_counted(row: Row, *, counts_every_draft: bool) -> Row:
    """The row, without the zeros of an engine that makes drafts without reporting them, as a fork may.

    `counts_every_draft`: a zero means that no draft was made.
    """
    if counts_every_draft or row.speculation in {"off", "unknown"} or (row.counted is not None and row.counted.drafts):
        return row
    return replace(row, counted=None, draft_tokens=None)


def _tpots(answered: Sequence[TimedCompletion]) -> list[float]:
    return [request.tpot for request in answered if request.tpot is not None]


def _draft_tokens(counted: SpecCounters | None) -> int | None:
    """Draft tokens of a step; if their number depends on the load, the rounded mean."""
    if counted is None:
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


LIKE = {
    "HumanEval": ("humaneval", "code"),
    "MBPP": ("mbpp", "code"),
    "code, raw prompt": ("code",),
    "code, chat template": ("code",),
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
}
"""Workloads to compare a published one with, the most similar first. Prompts, lengths and engines differ."""


@dataclass(frozen=True)
class Beside:
    """A published row, and ours of the most similar workload at the same concurrency. Rates in tokens/s in total.

    `ours_draft_tokens` may differ from theirs. Values that were not measured or not published are `None`.
    """

    workload: str
    concurrency: int
    draft_tokens: int
    plain: float | None
    dflash: float
    acceptance_length: float | None
    source: str
    ours_workload: str
    ours_draft_tokens: int | None
    ours_plain: float | None
    ours_dflash: float | None
    ours_acceptance_length: float | None

    def document(self) -> dict[str, object]:
        """The row for `--json`."""
        return asdict(self)


def beside(published: Iterable[PublishedSpeed], rows: Sequence[Row]) -> list[Beside]:
    """The published rows with a measurement to compare."""
    ours = {(row.workload, row.concurrency, row.speculation): row for row in rows}
    measured = {(row.workload, row.concurrency) for row in rows}
    pairs = [
        (speed, next((name for name in LIKE.get(speed.workload, ()) if (name, speed.concurrency) in measured), None))
        for speed in published
    ]
    return [
        _beside(speed, name, ours.get((name, speed.concurrency, "dflash")), ours.get((name, speed.concurrency, "off")))
        for speed, name in pairs
        if name is not None
    ]


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
