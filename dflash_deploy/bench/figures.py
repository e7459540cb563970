"""From the times of single requests to the figures of a measurement.

TTFT, TPOT and ITL are those of vLLM's benchmark (vllm/benchmarks/serve.py, 0.32.0): seconds to the first chunk; seconds
after it for each further token, one figure per request; seconds between chunks, which hold several tokens with a
drafter.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from dflash_deploy.bench.load import Load
    from dflash_deploy.client import SpecCounters, TimedCompletion

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
