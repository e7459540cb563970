"""The text of a load: what it means, and what is said of a wrong one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_deploy.errors import BadInput
from dflash_deploy.features.capacity.load_text import UserLoad, parse_load


def test_a_load_with_units() -> None:
    load = parse_load("users=200, think=30s, in=2k, out=500, p95_ttft=1500ms, p95_answer=0.5min")
    assert load == UserLoad(200, 30.0, 2000, 500, 1.0, 1.5, 30.0)


def test_what_may_be_left_out() -> None:
    assert parse_load("users=1,in=10,out=10,p95_answer=2s,spread=0") == UserLoad(1, 0.0, 10, 10, 0.0, None, 2.0)
    assert parse_load("users=1.5k,in=10,out=10,p95_ttft=2s,think=0").users == 1500


REST = "in=10,out=10,p95_ttft=2s"


@pytest.mark.parametrize(
    ("written", "message", "hint"),
    [
        ("", "`` is not valid in a load (NAME=VALUE)", "such as users=200"),
        ("users", "`users` is not valid in a load (NAME=VALUE)", "such as users=200"),
        (f"user=3,{REST}", "`user` is not a part of a load", "did you mean `users`?"),
        (f"users=3,users=4,{REST}", "`users` is in the load more than once", "write it once"),
        (f"users=many,{REST}", "`users=many` is not valid (a whole number from 1 to 100000)", "users=2k"),
        (f"users=0,{REST}", "`users=0` is not valid", "users=200"),
        (f"users=-3,{REST}", "`users=-3` is not valid", "users=200"),
        (f"users=1.5,{REST}", "`users=1.5` is not valid (a whole number", "users=200"),
        (f"users=3,think=30,{REST}", "`think=30` has no unit", "think=30s, 30ms or 30min"),
        (f"users=3,think=nan,{REST}", "`think=nan` is not valid (a duration from 0 s to 86400 s)", "think=500ms"),
        (f"users=3,think=2h,{REST}", "`think=2h` is not valid", "think=1min"),
        ("users=3,in=1,out=1,p95_ttft=0s", "`p95_ttft=0s` is not valid (a duration from 0.001 s", "p95_ttft=2s"),
        (f"users=3,spread=3,{REST}", "`spread=3` is not valid (a number from 0 to 2)", "spread=0"),
        (f"users=3,spread=1k,{REST}", "`spread=1k` is not valid", "spread=0"),
        ("users=3,in=10,p95_ttft=2s", "the load has no `out`", "such as users=200"),
        ("users=3,in=10,out=10", "the load has no goal: `p95_ttft` or `p95_answer`", "p95_ttft=2s"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(written: str, message: str, hint: str) -> None:
    with pytest.raises(BadInput) as raised:
        parse_load(written)
    assert message in raised.value.message
    assert hint in raised.value.hint
    assert "\n" not in raised.value.message + raised.value.hint


@given(st.text(max_size=80))
def test_any_text_is_a_load_or_a_bad_input(written: str) -> None:
    try:
        load = parse_load(written)
    except BadInput:
        return
    assert load.users >= 1


@given(st.integers(1, 100_000), st.integers(0, 86_400), st.integers(1, 10_000_000), st.integers(1, 86_400_000))
def test_a_written_load_is_read_as_written(users: int, think: int, tokens: int, goal: int) -> None:
    load = parse_load(f"users={users},think={think}s,in={tokens},out={tokens},p95_ttft={goal}ms")
    assert load == UserLoad(users, float(think), tokens, tokens, 1.0, load.p95_ttft_s, None)
    assert load.p95_ttft_s == pytest.approx(goal / 1000)
