"""The health check: what it remembers, and when it ends an engine."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dflash_deploy.serve.gateway.health import HUNG_AFTER, RESTARTS, WITHIN, Evidence, Memory, after


def test_an_engine_that_works_is_left_alone() -> None:
    memory = Memory("a", silent=HUNG_AFTER - 1)
    assert after(memory, 100.0, "b", Evidence.COUNTED) == (Memory("b"), False)
    assert after(memory, 100.0, "a", Evidence.GENERATED) == (Memory("a", asked=100.0), False)
    # it was not asked, since it answered a while ago
    assert after(Memory("a", asked=50.0), 100.0, "a", Evidence.UNTESTED) == (Memory("a", asked=50.0), False)


def test_one_that_hangs_is_ended_a_few_times_an_hour(tmp_path: Path) -> None:
    memory, now, ends = Memory("a"), 0.0, []
    for _ in range(HUNG_AFTER * (RESTARTS + 3)):
        now += 30.0
        memory, end = after(memory, now, "a", Evidence.FAILED)
        if end:
            ends.append(now)
            # it restarts, and hangs again with the same counts
            memory = Memory("a", restarts=memory.restarts)
    assert len(ends) == RESTARTS
    assert ends[0] == HUNG_AFTER * 30.0
    # an hour later it may be tried again
    memory, end = after(Memory("a", silent=HUNG_AFTER, restarts=tuple(ends)), now + WITHIN, "a", Evidence.FAILED)
    assert end
    assert memory.restarts == (now + WITHIN,)


@given(st.lists(st.sampled_from(Evidence), max_size=200))
def test_no_engine_is_ended_that_made_progress_within_the_last_checks(found: list[Evidence]) -> None:
    memory, silent = Memory(), 0
    for number, progress in enumerate(found):
        silent = silent + 1 if progress is Evidence.FAILED else 0
        memory, end = after(memory, number * 30.0, "a", progress)
        assert not end or silent >= HUNG_AFTER
        if end:
            silent = 0
