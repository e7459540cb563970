"""The interval of a measured percentile (benchmarks/intervals.py)."""

import random

from benchmarks.intervals import interval, ratio_interval
from dflash_deploy.bench.figures import quantile


def width(values: list[float]) -> float:
    low, high = interval(values, 0.95)
    return high - low


def test_the_interval_is_around_the_percentile_and_narrower_with_more_values() -> None:
    numbers = random.Random(1)
    few, many = ([numbers.expovariate(1.0) for _ in range(count)] for count in (100, 1600))
    for values in (few, many):
        low, high = interval(values, 0.95)
        assert low <= quantile(sorted(values), 0.95) <= high
    assert width(many) < width(few) / 2


def test_neighbours_that_are_alike_say_less_than_as_many_others() -> None:
    numbers = random.Random(2)
    queues = [value for value in (numbers.expovariate(1.0) for _ in range(40)) for _ in range(20)]
    assert width(queues) > 1.5 * width(numbers.sample(queues, len(queues)))


def test_equal_values_have_no_interval() -> None:
    assert interval([2.0] * 30, 0.95) == (2.0, 2.0)


def test_the_interval_of_a_ratio_shows_whether_rounds_can_tell_it_from_one() -> None:
    numbers = random.Random(3)
    before = [numbers.gauss(100.0, 4.0) for _ in range(12)]
    after = before[::-1]
    low, high = ratio_interval(before, after)
    assert 0.9 < low < 1.0 < high < 1.1
    low, high = ratio_interval(before, [0.8 * rate for rate in after])
    assert low < 0.8 < high < 0.9
