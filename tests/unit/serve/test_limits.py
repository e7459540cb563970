"""Limits of a key hold over all gateways that share a directory. Each `KeyLimits` is a gateway of its own."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_deploy.serve.gateway.keys import Accepted
from dflash_deploy.serve.gateway.limits import MINUTE, Admission, KeyLimits

STEPS = st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(1, 6)), max_size=60)


def alice(in_flight: int | None = None, tokens: int | None = None) -> Accepted:
    return Accepted("alice", b"", "infer", in_flight, tokens)


def files(directory: Path) -> set[str]:
    return {path.name.partition(".")[0] for path in directory.iterdir()}


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


def test_what_was_not_used_is_given_back_also_to_other_gateways(tmp_path: Path) -> None:
    one, other, key = KeyLimits(tmp_path), KeyLimits(tmp_path), alice(tokens=200)
    assert [one.reserve(key, 90, 1000.0), other.reserve(key, 90, 1000.0), one.reserve(key, 90, 1001.0)] == [None] * 3
    assert other.reserve(key, 90, 1002.0) == 58
    one.settle(key, 90, 1000.0, 19, 1003.0)
    assert other.reserve(key, 90, 1004.0) is None
    # a gateway that died gives its reservations back after a minute
    assert KeyLimits(tmp_path).reserve(key, 1, 1063.5) is None


@given(STEPS)
def test_in_flight_over_three_gateways_never_exceeds_the_limit(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, bool, int]]
) -> None:
    directory = tmp_path_factory.mktemp("limits")
    gateways = [KeyLimits(directory) for _ in range(3)]
    flying: list[tuple[int, int | None]] = []
    for which, begins, limit in steps:
        if begins:
            wait, place = gateways[which].admit(alice(limit), 0.0)
            # admitted if and only if the requests of all gateways allow one more, also after the limit was changed
            assert (wait is None) is (len(flying) < limit)
            if wait is None:
                flying.append((which, place))
        elif flying:
            holder, taken = flying.pop(len(flying) // 2)
            gateways[holder].leave(alice(limit), taken)


def test_tokens_of_one_gateway_count_at_the_others(tmp_path: Path) -> None:
    one, other = KeyLimits(tmp_path), KeyLimits(tmp_path)
    key = alice(tokens=100)
    assert other.admit(key, 1000.0) == Admission()
    spend(one, key, 60, 1001.0)
    assert other.wait(key, 1002.0) is None
    spend(other, key, 40, 1015.0)
    # the first request leaves the minute at 1061
    assert [gateway.wait(key, 1019.0) for gateway in (one, other)] == [42, 42]
    assert [gateway.wait(key, 1061.0) for gateway in (one, other)] == [None, None]


def test_a_gateway_that_starts_knows_the_tokens_of_the_minute(tmp_path: Path) -> None:
    key = alice(tokens=100)
    spend(KeyLimits(tmp_path), key, 100, 1019.0)
    # in another minute of the clock, and in the same 60 seconds
    assert KeyLimits(tmp_path).wait(key, 1021.0) == 58
    assert KeyLimits(tmp_path).wait(key, 1079.0) is None


def test_files_of_earlier_minutes_are_removed(tmp_path: Path) -> None:
    limits, key = KeyLimits(tmp_path), alice(tokens=10)
    for now in range(0, 1200, 20):
        spend(limits, key, 1, float(now))
        limits.wait(key, float(now))
    assert len(list(tmp_path.iterdir())) <= 4


def test_records_of_another_boot_and_damaged_ones_do_not_count(tmp_path: Path) -> None:
    key = alice(tokens=10)
    spend(KeyLimits(tmp_path), key, 50, 1000.0)
    (file,) = tmp_path.iterdir()
    with file.open("ab") as opened:
        opened.write(os.urandom(7))
    assert KeyLimits(tmp_path).wait(key, 1001.0) == 59
    file.rename(file.with_name(file.name.replace(file.name.split(".")[1], "another-boot")))
    assert KeyLimits(tmp_path).wait(key, 1001.0) is None


def test_keys_without_limits_have_no_files(tmp_path: Path) -> None:
    limits = KeyLimits(tmp_path)
    assert limits.admit(alice(), 0.0) == Admission()
    limits.leave(alice(), None)
    spend(limits, alice(), 5, 0.0)
    assert files(tmp_path) == set()
    limits.admit(alice(1, 1), 0.0)
    assert files(tmp_path) == {"alice"}


def test_limits_of_one_key_do_not_touch_another(tmp_path: Path) -> None:
    one, other = KeyLimits(tmp_path), KeyLimits(tmp_path)
    bob = Accepted("bob", b"", "infer", 1, None)
    assert one.admit(alice(1), 0.0).wait is None
    assert other.admit(bob, 0.0).wait is None
    assert other.admit(alice(1), 0.0).wait == 1


def test_without_the_directory_each_gateway_has_the_limits_for_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    limits = KeyLimits(tmp_path / "file" / "limits")
    assert [limits.admit(alice(2, 100), 0.0).wait for _ in range(3)] == [None, None, 1]
    spend(limits, alice(2, 100), 100, 1.0)
    assert limits.wait(alice(2, 100), 2.0) == 59
    said = capsys.readouterr().err
    assert said.count("each gateway has the limits of DFLASH_API_KEYS for itself") == 1
