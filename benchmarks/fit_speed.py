"""`python -m benchmarks.fit_speed`: fit the constants of plan/speed.py to the published figures.

It starts at the present constants and changes one of them at a time, within their physical limits. It prints the
constants and the errors, and changes no file.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.speed_model import REASONS, Point, compared, points, summary, totals
from dflash_deploy.plan import speed

NAMES = (
    "BANDWIDTH_REACHED",
    "UNIFIED_REACHED",
    "LAYER_OVERHEAD",
    "SEQUENCE_OVERHEAD",
    "DRAFT_OVERHEAD",
    "EXPERTS_REACHED",
)
# Without NVLink and network: too few figures determine them, so they stay near what their hardware implies.
TABLES = {
    "VERIFY_OVERHEAD": ("graph", "launched", "early"),
    "ARITHMETIC_REACHED": ("bf16", "fp8", "fp4", "int4"),
    "REDUCE_LATENCY": ("pcie", "pair"),
}

LIMITS = {"BANDWIDTH_REACHED": 0.95, "UNIFIED_REACHED": 0.85, "EXPERTS_REACHED": 1.0}
MOST = 0.5  # an error beyond it counts as this one: what a source did differently does not move the constants
STEPS = (1.2, 1.05, 1.01)
COST = 0.005  # of the logarithm of a change, as an error: few figures do not move a constant far

# What data sheets and kernels let expect without any of the figures: where the fit without a source starts.
PRIOR = {
    "BANDWIDTH_REACHED": 0.9,
    "UNIFIED_REACHED": 0.85,
    "LAYER_OVERHEAD": 75e-6,
    "SEQUENCE_OVERHEAD": 0.1e-3,
    "DRAFT_OVERHEAD": 1e-3,
    "EXPERTS_REACHED": 0.8,
    "graph": 5e-6,
    "launched": 75e-6,
    "early": 75e-6,
    "bf16": 0.3,
    "fp8": 0.6,
    "fp4": 1.2,
    "int4": 1.2,
    "pcie": 50e-6,
    "pair": 10e-6,
}


def loss(chosen: Sequence[Point]) -> float:
    """The mean of the errors as ratios. A source of n figures counts as the square root of n."""
    count = Counter(point.publisher for point in chosen)
    weights = [count[point.publisher] ** -0.5 for point in chosen]
    errors = [min(abs(math.log(row.expected / row.seen)), MOST) for row in compared(chosen)]
    total: float = math.fsum(map(operator.mul, weights, errors)) / sum(weights)
    return total


def fit(chosen: Sequence[Point], steps: Sequence[float] = STEPS) -> None:
    """Change the constants of plan/speed.py to those that fit these figures."""
    best = loss(chosen)
    for factor in steps:
        improved = True
        while improved:
            improved = False
            for container, name in _constants():
                for change in (factor, 1 / factor):
                    before = container[name]
                    container[name] = min(before * change, LIMITS.get(name, math.inf))
                    now = loss(chosen)
                    if now < best - COST * math.log(factor):
                        best, improved = now, True
                    else:
                        container[name] = before


@contextmanager
def fitted(chosen: Sequence[Point]) -> Iterator[None]:
    """The constants that fit these figures, from PRIOR on; afterwards those that were."""
    kept = [container[name] for container, name in _constants()]
    for container, name in _constants():
        container[name] = PRIOR[name]
    try:
        fit(chosen, STEPS[:2])
        yield
    finally:
        for (container, name), value in zip(_constants(), kept, strict=True):
            container[name] = value


def main() -> None:
    """Fit, and print."""
    fit([point for point in points() if point.publisher not in REASONS])
    for container, name in _constants():
        print(f"{name:20} {container[name]:.3g}")
    for name, rows in totals(compared()).items():
        print(name, *summary(rows))


def _constants() -> Iterator[tuple[dict[str, float], str]]:
    for name in NAMES:
        yield vars(speed), name
    for table, keys in TABLES.items():
        for key in keys:
            yield vars(speed)[table], key


if __name__ == "__main__":
    main()
