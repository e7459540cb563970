"""The decision: users of one replica, replicas, and where drafts stop paying."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_deploy.features.capacity import simulation
from dflash_deploy.features.capacity.load_text import UserLoad
from dflash_deploy.features.capacity.simulation import (
    STEP,
    Service,
    drafts_pay_below,
    most_users,
    replicas_for,
    simulate,
    size,
)

GPU = Service(((1.0, 0.025), (8.0, 0.03), (64.0, 0.06)), 1.0, 0.0001, 0.01, 64, 8192)
ASKED = UserLoad(200, 30.0, 2000, 500, 1.0, 2.0, None)


fewer_simulated = partial(simulate, requests=500)
"""With a third of the requests, chance has more to say; what is decided here must hold nevertheless."""


@pytest.fixture(autouse=True, scope="module")
def fewer() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "simulate", fewer_simulated)
        yield


def test_users_are_divided_by_those_that_one_replica_serves() -> None:
    found = size(GPU, ASKED)
    assert found.replicas == math.ceil(ASKED.users / found.users_of_one)
    assert found.one.meets(ASKED)
    assert found.one.users * found.replicas >= ASKED.users
    assert found.tokens_per_s == pytest.approx(found.replicas * found.one.tokens_per_s)
    # one more step of users misses the goal
    more = math.ceil(found.users_of_one * (1 + STEP)) + 1
    assert not fewer_simulated(GPU, ASKED, more).meets(ASKED)


@settings(max_examples=3, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.floats(0.3, 4.0), st.floats(0.0, 40.0))
def test_more_users_never_need_fewer_replicas(users: int, more: int, goal_s: float, think_s: float) -> None:
    asked = replace(ASKED, users=users, p95_ttft_s=goal_s, think_s=think_s, prompt_tokens=400, answer_tokens=60)
    # most simulations of the two sizes are the same
    once = cache(lambda users: fewer_simulated(GPU, asked, users))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "simulate", lambda _service, _load, users: once(users))
        few = size(GPU, asked).replicas
        many = size(GPU, replace(asked, users=users + more)).replicas
    assert (few is None) == (many is None)
    if few is not None and many is not None:
        assert few <= many


@given(st.integers(0, 5000), st.integers(1, 5000), st.integers(0, 5000), st.sets(st.integers(1, 300), max_size=20))
def test_the_most_users_never_fall_with_a_higher_limit(most: int, limit: int, more: int, noise: set[int]) -> None:
    """Even if chance says of some numbers the opposite."""

    def meets(users: int) -> bool:
        return (users <= most) != (users in noise)

    low, high = most_users(meets, limit), most_users(meets, limit + more)
    assert low == min(high, limit)
    assert low <= limit
    if low:
        first, second = replicas_for(limit, low), replicas_for(limit + more, high)
        assert first is not None
        assert second is not None
        assert first <= second


@given(st.integers(0, 5000), st.integers(1, 5000))
def test_the_most_users_are_found_to_within_a_step(most: int, limit: int) -> None:
    found = most_users(lambda users: users <= most, limit)
    assert found <= min(most, limit)
    assert found >= min(most, limit) / (1 + STEP) - 1


def test_a_goal_that_a_single_user_misses_has_no_number_of_replicas() -> None:
    found = size(GPU, replace(ASKED, p95_ttft_s=0.01))
    assert (found.replicas, found.users_of_one, found.one.users) == (None, 0, 1)


def test_a_goal_for_the_whole_answer() -> None:
    found = size(GPU, replace(ASKED, p95_ttft_s=None, p95_answer_s=60.0))
    assert found.replicas is not None
    assert found.one.answer_p95_s <= 60.0


def test_drafts_stop_paying_where_a_token_takes_as_long_as_without() -> None:
    plain = Service(((1.0, 0.01), (16.0, 0.01)), 1.0, 0.0, 0.0, 16, 100)
    drafted = Service(((1.0, 0.02), (16.0, 0.05)), 3.0, 0.0, 0.0, 16, 100)
    # 0.02 + 0.002 x (n - 1) = 0.03
    assert drafts_pay_below(drafted, plain) == 6
    assert drafts_pay_below(replace(drafted, tokens_per_step=8.0), plain) is None
    assert drafts_pay_below(replace(drafted, tokens_per_step=1.5), plain) == 1
