"""The last wait of a pod: no longer than its requests, and no shorter than others take to learn that it ends."""

import pytest

from dflash_deploy.serve.drain import QUIET, SETTLES, drained


class Waiting:
    """A clock that only sleeping moves, and readings in turn, of which the last one stays."""

    def __init__(self, *readings: int | None) -> None:
        self.readings, self.now = list(readings), 0.0
        self.asked: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def reading(self) -> int | None:
        self.asked.append(self.now)
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]

    def ends(self, seconds: float) -> bool:
        return drained(self.reading, seconds, lambda: self.now, self.sleep)


def test_an_idle_pod_ends_at_once_but_not_before_others_know() -> None:
    waiting = Waiting(0)
    assert waiting.ends(120)
    assert min(waiting.asked) == SETTLES
    assert SETTLES < waiting.now <= SETTLES + 2


def test_a_pod_at_work_ends_with_its_requests() -> None:
    waiting = Waiting(*[2] * 10, 0, 1, *[None] * 4, 0)
    assert waiting.ends(120)
    # one reading without requests is not the end, and no answer is none either
    assert len(waiting.asked) == 10 + 1 + 1 + 4 + QUIET


@pytest.mark.parametrize("reading", [1, None])
def test_a_request_that_does_not_end_holds_a_pod_no_longer_than_the_setting(reading: int | None) -> None:
    waiting = Waiting(reading)
    assert not waiting.ends(30)
    assert SETTLES + 30 <= waiting.now <= SETTLES + 31


def test_without_seconds_only_others_are_waited_for() -> None:
    waiting = Waiting(3)
    assert not waiting.ends(0)
    assert waiting.now == SETTLES
