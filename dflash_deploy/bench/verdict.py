"""Whether drafts pay, in words, and how far the figures can be trusted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from dflash_deploy.bench.figures import Row

PAYS, COSTS = 1.05, 0.95
"""Speed-ups from which on drafts pay, and below which they cost speed: less is within what repeats differ by."""

DISAGREE = 0.2
"""Difference of the fastest and the slowest repeat, as a share of the median, above which repeats disagree."""

SHORT_S = 5.0
"""Seconds; a shorter measurement says little."""

BUSY = 0.5
"""Share of the cores that other programs may use before a run."""


def verdicts(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each workload that was measured with and without drafts; one line if none was."""
    compared = [row for row in rows if row.speedup is not None and row.speculation == "dflash"]
    if not compared:
        yield "verdict    unknown: only --baseline says whether drafts pay"
    for workload in dict.fromkeys(row.workload for row in compared):
        found = sorted((row for row in compared if row.workload == workload), key=lambda row: row.concurrency)
        parts = (_part(kind, [row for row in found if _kind(row) == kind]) for kind in ("pay", "change little", "cost"))
        yield f"verdict    {workload}: drafts {'; '.join(filter(None, parts))}"
    if any(_kind(row) == "cost" for row in compared):
        yield "hint: `dflash-deploy tune` finds the draft tokens for this load"


def cautions(rows: Sequence[Row], load: float, cores: int) -> Iterator[str]:
    """Why the figures may be wrong. `load` is the load average of this machine before the run."""
    if load > BUSY * cores:
        yield f"busy       this machine had a load average of {load:.1f} on {cores} cores before the run"
    odd = [row for row in rows if len(row.rounds) > 1 and _difference(row) > DISAGREE]
    if odd:
        worst = max(odd, key=_difference)
        told = f"{worst.workload} at concurrency {worst.concurrency} by {100 * _difference(worst):.0f} %"
        yield f"unsteady   repeats differ: {told}"
    if rows and max(len(row.rounds) for row in rows) == 1:
        yield "unsteady   one repeat: small differences may be chance (--repeats 5)"
    if short := [row for row in rows if row.duration_s < SHORT_S]:
        yield f"short      {len(short)} of {len(rows)} measurements took less than {SHORT_S:g} s (--requests N)"


def _kind(row: Row) -> str:
    speedup = row.speedup or 1.0
    return "pay" if speedup >= PAYS else "cost" if speedup < COSTS else "change little"


def _part(kind: str, rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    where = ", ".join(f"{row.concurrency} ({row.speedup:.2f} times)" for row in rows)
    return f"{kind} at concurrency {where}"


def _difference(row: Row) -> float:
    middle = median(row.rounds)
    return (max(row.rounds) - min(row.rounds)) / middle if middle else 0.0
