"""Every workload under every number of streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dflash_deploy.bench.figures import Row, row_of
from dflash_deploy.bench.load import measure
from dflash_deploy.bench.workload import Limits, Workload
from dflash_deploy.client import Endpoint

ROUNDS_OF_STREAMS = 2
"""Requests that each stream answers at the least, where their number was not asked for."""


@dataclass(frozen=True)
class Sweep:
    """What is measured. `requests` is the number in one repeat; `None`: each prompt once, and two for each stream."""

    workloads: tuple[Workload, ...]
    concurrency: tuple[int, ...]
    limits: Limits
    repeats: int
    requests: int | None = None
    warmup: int | None = None

    def requests_of(self, workload: Workload, concurrency: int) -> int:
        """How many requests one repeat has."""
        return self.requests or max(len(workload.questions), ROUNDS_OF_STREAMS * concurrency)


def run_sweep(
    endpoint: Endpoint, sweep: Sweep, *, drafter: bool | None, mtp: bool = False, show: Callable[[Row], None]
) -> list[Row]:
    """Measure an endpoint as it is, and show each row as it is there.

    `drafter` and `mtp` say which part the rows belong to; `None` where only the engine's counters can tell.
    """
    rows = []
    for workload in sweep.workloads:
        bodies = workload.bodies(endpoint.model, sweep.limits)
        for concurrency in sweep.concurrency:
            load = measure(
                endpoint,
                bodies,
                concurrency=concurrency,
                requests=sweep.requests_of(workload, concurrency),
                repeats=sweep.repeats,
                warmup=sweep.warmup,
            )
            rows.append(row_of(workload.name, load, drafter=drafter, mtp=mtp))
            show(rows[-1])
    return rows


def with_speedups(drafted: Sequence[Row], plain: Sequence[Row]) -> list[Row]:
    """All rows, each drafted one with its speed-up and before the plain one of the same workload and streams."""
    bases = {(row.workload, row.concurrency): row.tokens_per_s for row in plain}
    sped = [
        replace(row, speedup=_ratio(row.tokens_per_s, bases.get((row.workload, row.concurrency)))) for row in drafted
    ]
    workloads = list(dict.fromkeys(row.workload for row in (*drafted, *plain)))
    return sorted([*sped, *plain], key=lambda row: (workloads.index(row.workload), row.concurrency))


def _ratio(ours: float, base: float | None) -> float | None:
    return ours / base if base else None
