"""The health check: what it remembers, and when it ends an engine."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dflash_deploy.serve.gateway.health import HUNG_AFTER, RESTARTS, WITHIN, Memory, after


def test_an_engine_that_works_is_left_alone() -> None:
    memory = Memory("a", silent=HUNG_AFTER - 1)
    assert after(memory, 100.0, counts="b", answered=None) == (Memory("b"), False)
    assert after(memory, 100.0, counts="a", answered=True) == (Memory("a", asked=100.0), False)
    # nothing was asked, since it answered a while ago
    assert after(Memory("a", asked=50.0), 100.0, counts="a", answered=None) == (Memory("a", asked=50.0), False)


def test_one_that_hangs_is_ended_a_few_times_an_hour(tmp_path: Path) -> None:
    memory, now, ends = Memory("a"), 0.0, []
    for _ in range(HUNG_AFTER * (RESTARTS + 3)):
        now += 30.0
        memory, end = after(memory, now, counts="a", answered=False)
        if end:
            ends.append(now)
            # it starts anew, and hangs again with the same counts
            memory = Memory("a", restarts=memory.restarts)
    assert len(ends) == RESTARTS
    assert ends[0] == HUNG_AFTER * 30.0
    # an hour later it may be tried again
    memory, end = after(Memory("a", silent=HUNG_AFTER, restarts=tuple(ends)), now + WITHIN, counts="a", answered=False)
    assert end
    assert memory.restarts == (now + WITHIN,)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([None, True, False])), max_size=200))
def test_no_engine_is_ended_that_gave_a_sign_within_the_last_checks(looks: list[tuple[str, bool | None]]) -> None:
    memory, silent, counted = Memory(), 0, ""
    for number, (counts, answered) in enumerate(looks):
        sign = bool(answered) or answered is None or counts != counted
        silent, counted = (0 if sign else silent + 1), counts
        memory, end = after(memory, number * 30.0, counts=counts, answered=answered)
        assert not end or silent >= HUNG_AFTER
        if end:
            silent, counted = 0, ""
