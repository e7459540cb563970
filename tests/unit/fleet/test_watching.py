"""When the ranks of one engine start again together, and when the watch waits."""

from dataclasses import replace

import pytest

from dflash_deploy.features.fleet.prepare import RankSeen, judge_ranks

A, B = RankSeen("running", "process 1"), RankSeen("running", "process 2")
WELL = {"a": A, "b": B}


@pytest.mark.parametrize(
    ("now", "verdict", "reason"),
    [
        (WELL, "together", ""),
        ({"a": A, "b": RankSeen("exited", "process 2")}, "broken", "b: its rank is exited"),
        ({"a": A, "b": RankSeen("absent")}, "broken", "b: its rank is absent"),
        ({"a": A, "b": replace(B, phase="paused")}, "broken", "b: its rank is paused"),
        ({"a": replace(A, hangs=True), "b": B}, "broken", "a: requests wait"),
        ({"a": A, "b": replace(B, restarts=1)}, "broken", "b: its rank started again without the others"),
        ({"a": replace(A, identity="process 7"), "b": B}, "broken", "a: its rank started again without the others"),
        # somebody restarted all of them
        ({"a": replace(A, identity="process 7"), "b": replace(B, identity="process 8")}, "together", ""),
        ({"a": RankSeen("absent"), "b": RankSeen("absent")}, "stopped", "stopped on all hosts"),
        # `fleet down` did not reach b
        ({"a": RankSeen("absent"), "b": B}, "stopped", "a: the engine is stopped, though not on all hosts"),
        ({"a": A, "b": replace(B, silent=("10.0.0.1",))}, "cut", "b: 10.0.0.1 does not answer over the link"),
        # a host that cannot be reached comes first: its rank cannot be started
        ({"a": RankSeen("exited"), "b": RankSeen(unreached="b: 10.0.0.2 is lost")}, "cut", "b: 10.0.0.2 is lost"),
    ],
)
def test_what_follows_from_a_look(now: dict[str, RankSeen], verdict: str, reason: str) -> None:
    found = judge_ranks(WELL, now, "a")
    assert found.verdict == verdict
    assert reason in found.reason


def test_the_first_look_has_nothing_to_compare_with() -> None:
    assert judge_ranks({}, WELL, "a").verdict == "together"
