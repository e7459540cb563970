"""The times at which alerts fired."""

from datetime import UTC, datetime, timedelta

import pytest

from dflash_deploy.features.monitoring.api import LOOK_BACK
from dflash_deploy.features.monitoring.operations import _spans

BEGAN = datetime(2026, 11, 1, tzinfo=UTC)


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
