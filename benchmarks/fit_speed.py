"""`python -m benchmarks.fit_speed`: fit the constants of plan/speed.py to the figures that are marked as fitted.

It starts at the present constants and changes one of them at a time, within their physical limits. It prints the
constants and the errors, and changes no file.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator

from benchmarks.speed_model import Compared, compared, groups, summary
from dflash_deploy.plan import speed

NAMES = (
    "BANDWIDTH_REACHED",
    "UNIFIED_REACHED",
    "LAYER_OVERHEAD",
    "SEQUENCE_OVERHEAD",
    "VERIFY_OVERHEAD",
    "DRAFT_OVERHEAD",
)
# Without FP8 and NVLink: too few figures determine them, so they stay near what their hardware implies.
TABLES = {"ARITHMETIC_REACHED": ("bf16", "fp4", "int4"), "REDUCE_LATENCY": ("pcie",)}

LIMITS = {"BANDWIDTH_REACHED": 0.95, "UNIFIED_REACHED": 0.85}
STEPS = (1.2, 1.05, 1.01)


def loss(rows: list[Compared]) -> float:
    """The mean of the fitted figures' errors as ratios. One card has most figures: each of its counts a third."""
    fitted = [row for row in rows if row.point.fitted]
    weights = [0.35 if row.point.source == "z-lab model card" else 1.0 for row in fitted]
    errors = [abs(math.log(row.expected / row.seen)) for row in fitted]
    return math.fsum(map(operator.mul, weights, errors)) / sum(weights)


def main() -> None:
    """Fit, and print."""
    best = loss(compared())
    for factor in STEPS:
        improved = True
        while improved:
            improved = False
            for container, name in _constants():
                for change in (factor, 1 / factor):
                    before = container[name]
                    container[name] = min(before * change, LIMITS.get(name, math.inf))
                    now = loss(compared())
                    if now < best - 1e-6:
                        best, improved = now, True
                    else:
                        container[name] = before
    for container, name in _constants():
        print(f"{name:20} {container[name]:.3g}")
    for name, rows in groups(compared()).items():
        print(name, *summary(rows))


def _constants() -> Iterator[tuple[dict[str, float], str]]:
    for name in NAMES:
        yield vars(speed), name
    for table, keys in TABLES.items():
        for key in keys:
            yield vars(speed)[table], key


if __name__ == "__main__":
    main()
