"""How sure a measured ratio is: a bootstrap."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import median

from dflash_deploy.bench.figures import quantile

RESAMPLES = 400


def ratio_interval(theirs: Sequence[float], ours: Sequence[float], *, level: float = 0.95) -> tuple[float, float]:
    """The interval that has the ratio of the medians with the probability `level`, from rounds in turns."""
    numbers, pairs = random.Random(0), [*zip(theirs, ours, strict=True)]  # noqa: S311
    drawn = (numbers.choices(pairs, k=len(pairs)) for _ in range(RESAMPLES))
    return _middle([median(our for _, our in some) / median(their for their, _ in some) for some in drawn], level)


def _middle(found: Sequence[float], level: float) -> tuple[float, float]:
    """The range of the middle share of values."""
    outside = (1 - level) / 2
    return quantile(sorted(found), outside), quantile(sorted(found), 1 - outside)
