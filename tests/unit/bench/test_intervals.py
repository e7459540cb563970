"""The interval of a measured ratio (benchmarks/intervals.py)."""

import random

from benchmarks.intervals import ratio_interval


def test_the_interval_of_a_ratio_shows_whether_rounds_can_tell_it_from_one() -> None:
    numbers = random.Random(3)
    before = [numbers.gauss(100.0, 4.0) for _ in range(12)]
    after = before[::-1]
    low, high = ratio_interval(before, after)
    assert 0.9 < low < 1.0 < high < 1.1
    low, high = ratio_interval(before, [0.8 * rate for rate in after])
    assert low < 0.8 < high < 0.9
