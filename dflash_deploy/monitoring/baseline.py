"""The baseline of a deployment as a recording rule: its time per output token without speculative decoding.

`bench --baseline` measures that time at some concurrencies. Between two of them it is on the line through both, beyond
them that of the nearest. So each engine is compared at the concurrency that it has, not at the one of the benchmark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from dflash_deploy.monitoring.labels import DEPLOYMENT

BASELINE, CONCURRENCY = "dflash:baseline:tpot_seconds", "dflash:concurrency"
"""The series of the rule, and the one that it reads."""

SPEEDUP = "dflash:speedup_over_plain"
"""The series that compares an engine with its baseline."""


def baseline_rules(deployment: str, tpot_seconds: Mapping[int, float]) -> dict[str, Any]:
    """A file of rules with the one for the times of a deployment by concurrency; without any it has no rule."""
    if not tpot_seconds:
        return {"groups": []}
    rule = {"record": BASELINE, "expr": _expr(deployment, tpot_seconds)}
    return {"groups": [{"name": f"dflash-baseline-{deployment}", "rules": [rule]}]}


def _expr(deployment: str, tpot_seconds: Mapping[int, float]) -> str:
    """Lines from point to point: the first time, and the change of slope at each concurrency."""
    here = f'{CONCURRENCY}{{{DEPLOYMENT}="{deployment}"}}'
    changes = (f"{change:.6g} * clamp_min({here} - {at}, 0)" for at, change in _bends(tpot_seconds))
    return " + ".join((f"{tpot_seconds[min(tpot_seconds)]:.6g}", *changes))


def _bends(tpot_seconds: Mapping[int, float]) -> Iterator[tuple[int, float]]:
    """Each concurrency with the change of slope there: below the first and above the last one the line is level."""
    known = sorted(tpot_seconds.items())
    slopes = [0.0, *((after - time) / (there - at) for (at, time), (there, after) in pairwise(known)), 0.0]
    for (at, _), (before, behind) in zip(known, pairwise(slopes), strict=True):
        yield at, behind - before
