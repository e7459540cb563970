"""How sure a measured percentile or ratio is: bootstraps."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import median

from dflash_deploy.bench.figures import quantile

# Values in a block. Requests that wait in the same queue are alike, so that single ones would say too little.
BLOCK = 25

RESAMPLES = 400


def interval(values: Sequence[float], share: float, *, level: float = 0.95) -> tuple[float, float]:
    """The interval that has the quantile `share` of such values with the probability `level`.

    `values` are in the order in which they were measured. Blocks of neighbours are drawn again and again, around the
    end too (the circular block bootstrap of Politis and Romano, 1992).
    """
    numbers, count = random.Random(0), len(values)  # noqa: S311
    ring = [*values, *values[: BLOCK - 1]]
    found = []
    for _ in range(RESAMPLES):
        starts = (numbers.randrange(count) for _ in range(-(-count // BLOCK)))
        drawn = [value for start in starts for value in ring[start : start + BLOCK]][:count]
        found.append(quantile(sorted(drawn), share))
    return _middle(found, level)


def ratio_interval(theirs: Sequence[float], ours: Sequence[float], *, level: float = 0.95) -> tuple[float, float]:
    """The interval that has the ratio of the medians with the probability `level`, from rounds in turns."""
    numbers, pairs = random.Random(0), [*zip(theirs, ours, strict=True)]  # noqa: S311
    drawn = (numbers.choices(pairs, k=len(pairs)) for _ in range(RESAMPLES))
    return _middle([median(our for _, our in some) / median(their for their, _ in some) for some in drawn], level)


def _middle(found: Sequence[float], level: float) -> tuple[float, float]:
    """The range of the middle share of values."""
    outside = (1 - level) / 2
    return quantile(sorted(found), outside), quantile(sorted(found), 1 - outside)
