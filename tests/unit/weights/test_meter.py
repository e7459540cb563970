"""The rate of a measured download: only the time in which bytes can arrive counts."""

import pytest

from dflash_deploy.weights.fetch import LATEST, Meter


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_checking_files_is_no_time_of_the_network(clock: Clock) -> None:
    meter = Meter(3.0, clock)
    clock.now += 50
    assert not meter.end_if_due()
    meter.resume()
    clock.now += 1
    meter.add(10_000)
    meter.pause()
    clock.now += 50
    meter.resume()
    clock.now += 1
    assert not meter.end_if_due()
    clock.now += 1
    assert meter.end_if_due()
    assert meter.rate == pytest.approx(10_000 / 3)


def test_what_was_on_its_way_at_the_end_counts_and_the_time_after_does_not(clock: Clock) -> None:
    meter = Meter(3.0, clock)
    meter.resume()
    meter.add(1)
    clock.now += 3
    assert meter.end_if_due()
    clock.now += 30
    meter.add(30_000)
    meter.add(-500)
    meter.resume()
    clock.now += 30
    assert meter.rate == pytest.approx(10_000, rel=0.01)


def test_a_slow_server_has_time_for_its_first_byte(clock: Clock) -> None:
    meter = Meter(3.0, clock)
    meter.resume()
    clock.now += 10
    assert not meter.end_if_due()
    meter.add(500)
    assert meter.end_if_due()
    assert meter.rate == pytest.approx(50)


def test_nothing_is_no_rate(clock: Clock) -> None:
    meter = Meter(3.0, clock)
    assert meter.rate is None
    meter.resume()
    clock.now += LATEST
    assert meter.end_if_due()
    assert meter.rate is None
