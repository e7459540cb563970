"""The count of what they accepted, and the times at which alerts fired."""

from datetime import UTC, datetime, timedelta

import pytest

from dflash_deploy.features.monitoring.api import LOOK_BACK, Notifications
from dflash_deploy.features.monitoring.operations import _spans

BEGAN = datetime(2026, 11, 1, tzinfo=UTC)


def test_each_kind_of_receiver_is_counted_by_itself() -> None:
    before = Notifications({"webhook": 3, "email": 1}, {"webhook": 0, "email": 2})
    now = Notifications({"webhook": 5, "email": 1}, {"webhook": 0, "email": 3})
    assert now.since(before) == Notifications({"webhook": 2, "email": 0}, {"webhook": 0, "email": 1})


@pytest.mark.parametrize("step", [15, LOOK_BACK + 60])
def test_times_without_a_gap_are_one_event(step: int) -> None:
    begin = BEGAN.timestamp()
    times = [begin, begin + step, begin + 10 * step, begin + 20 * step]
    window = (BEGAN, BEGAN + timedelta(seconds=20 * step))
    later = step if step <= LOOK_BACK else 0
    assert [(one.at.timestamp() - begin, one.text) for one in _spans("A", "b:1", times, step, window)] == [
        (0, "A already fires at b:1"),
        (step + later, "A has ended at b:1"),
        (10 * step, "A fires at b:1"),
        (10 * step + later, "A has ended at b:1"),
        (20 * step, "A fires at b:1"),
    ]
