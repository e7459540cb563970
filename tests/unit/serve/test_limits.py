"""Limits of a key: requests in flight, and tokens within 60 seconds."""

from hypothesis import given
from hypothesis import strategies as st

from dflash_deploy.serve.gateway.keys import Accepted
from dflash_deploy.serve.gateway.limits import MINUTE, KeyLimits

STEPS = st.lists(st.tuples(st.booleans(), st.integers(1, 6)), max_size=60)


def alice(in_flight: int | None = None, tokens: int | None = None) -> Accepted:
    return Accepted("alice", b"", "infer", in_flight, tokens)


def spend(limits: KeyLimits, key: Accepted, tokens: int, now: float) -> None:
    limits.settle(key, 0, now, tokens, now)


QUARTERS = st.integers(0, 800).map(lambda count: count / 4)


@given(st.lists(st.tuples(QUARTERS, st.integers(0, 50)), max_size=30), st.integers(1, 100))
def test_in_no_minute_a_key_begins_above_its_tokens(requests: list[tuple[float, int]], limit: int) -> None:
    limits, key = KeyLimits(), Accepted("alice", b"", "infer", None, limit)
    done: list[tuple[float, int]] = []
    for now, tokens in sorted(requests):
        recent = sum(size for then, size in done if now - then < MINUTE)
        wait = limits.wait(key, now)
        assert (wait is None) is (recent < limit)
        if wait is None:
            spend(limits, key, tokens, now)
            done.append((now, tokens))
        else:
            assert 1 <= wait <= MINUTE
            # then, and not before, it is allowed
            assert sum(size for then, size in done if now + wait - then < MINUTE) < limit


@given(st.lists(st.tuples(QUARTERS, st.integers(1, 50), st.integers(0, 240)), max_size=30), st.integers(1, 100))
def test_reserved_tokens_bound_what_begins_at_once(requests: list[tuple[float, int, int]], limit: int) -> None:
    """Requests that take up to a minute and use no more than they reserved: the limit, and at most one request more."""
    limits, key = KeyLimits(), alice(tokens=limit)
    events = sorted((now, 1, size, quarters) for now, size, quarters in requests)
    running: list[tuple[float, float, int]] = []
    admitted: list[tuple[float, int]] = []
    for now, _, size, quarters in events:
        for end, begun, reserved in sorted(one for one in running if one[0] <= now):
            running.remove((end, begun, reserved))
            limits.settle(key, reserved, begun, reserved // 2, end)
        if limits.reserve(key, size, now) is None:
            running.append((now + quarters / 4, now, size))
            admitted.append((now, size))
        in_flight = sum(reserved for _, begun, reserved in running if now - begun < MINUTE)
        assert in_flight < limit + max((size for _, size in admitted), default=0)


def test_what_was_not_used_is_given_back() -> None:
    limits, key = KeyLimits(), alice(tokens=200)
    assert [limits.reserve(key, 90, now) for now in (1000.0, 1000.0, 1001.0)] == [None] * 3
    assert limits.reserve(key, 90, 1002.0) == 58
    limits.settle(key, 90, 1000.0, 19, 1003.0)
    assert limits.reserve(key, 90, 1004.0) is None


@given(STEPS)
def test_requests_in_flight_never_exceed_the_limit(steps: list[tuple[bool, int]]) -> None:
    limits, flying = KeyLimits(), 0
    for begins, limit in steps:
        if begins:
            wait = limits.admit(alice(limit), 0.0)
            # admitted if and only if the requests in flight allow one more, also after the limit was changed
            assert (wait is None) is (flying < limit)
            flying += wait is None
        elif flying:
            limits.leave(alice(limit))
            flying -= 1


def test_a_key_without_limits_is_always_admitted() -> None:
    limits = KeyLimits()
    assert [limits.admit(alice(), 0.0) for _ in range(1000)] == [None] * 1000
    assert limits.reserve(alice(), 10**9, 0.0) is None
    assert limits.reserve(alice(), 1, 0.0) is None


def test_limits_of_one_key_do_not_touch_another() -> None:
    limits = KeyLimits()
    bob = Accepted("bob", b"", "infer", 1, None)
    assert limits.admit(alice(1), 0.0) is None
    assert limits.admit(bob, 0.0) is None
    assert limits.admit(alice(1), 0.0) == 1
    limits.leave(alice(1))
    assert limits.admit(alice(1), 0.0) is None
