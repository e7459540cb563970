"""Conversations of agents: what they send grows to the context."""

from itertools import pairwise
from typing import Any

import pytest

from dflash_deploy.bench.agents import AgentConversation, AgentShape, shape_for, text_of
from dflash_deploy.bench.workload import Limits
from dflash_deploy.client.stream import TimedCompletion
from dflash_deploy.errors import BadInput

CHARACTERS = 3.0


def size_of(messages: list[Any]) -> int:
    """Tokens of texts whose tokens have three characters."""
    return int(sum(len(one["content"]) for one in messages) / CHARACTERS)


def prompts_of(agent: int, shape: AgentShape, answer: str = "short. ") -> list[list[Any]]:
    one, sent = AgentConversation(shape, "seed", agent, CHARACTERS, "1a"), list[list[Any]]()
    for _ in range(shape.turns):
        messages = one.body("m", Limits())["messages"]
        assert isinstance(messages, list)
        sent.append(list(messages))
        one.heard(TimedCompletion(0.1, 1.0, [], size_of(sent[-1]), 2, text=answer))
    return sent


@pytest.mark.parametrize(("context", "turns"), [(2048, 7), (32_768, 20), (131_072, 20)])
def test_histories_grow_to_the_context_and_never_beyond(context: int, turns: int) -> None:
    shape = shape_for(context, 64)
    assert shape.turns <= turns
    for agent in range(4):
        sizes = [size_of(sent) for sent in prompts_of(agent, shape)]
        assert sizes == sorted(sizes)
        assert 0.8 * context < sizes[-1] + shape.answer < context


def test_each_turn_begins_with_all_of_the_turn_before_and_agents_share_only_their_system_prompt() -> None:
    shape = shape_for(16_384, 64)
    first, second = prompts_of(0, shape), prompts_of(1, shape)
    assert all(later[: len(sent)] == sent for sent, later in pairwise(first))
    assert first[0][0] == second[0][0]
    assert first[0][1] != second[0][1]
    assert prompts_of(1, shape) == second


def test_two_runs_differ_only_in_their_session() -> None:
    shape = shape_for(4096, 64)
    runs = [AgentConversation(shape, "seed", 0, CHARACTERS, session) for session in ("1a", "2b")]
    first, second = (str(one.body("m", Limits())["messages"]) for one in runs)
    # from the beginning: a prefix cache keeps nothing of it
    assert first.index("1a") < 80
    assert first.replace("1a", "2b") == second


def test_a_turn_that_failed_is_not_part_of_the_history() -> None:
    one = AgentConversation(shape_for(4096, 64), "seed", 0, CHARACTERS, "1a")
    one.body("m", Limits())
    one.heard(TimedCompletion(problem="refused"))
    assert [message["role"] for message in one.messages] == ["system"]


def test_texts_depend_on_their_seed_only() -> None:
    assert text_of("file", "a", 5000) == text_of("file", "a", 5000) != text_of("file", "b", 5000)
    assert len(text_of("tools", "a", 777)) == 777


def test_conversations_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadInput, match="do not fit a context of 512 tokens") as refused:
        shape_for(512, 256)
    assert "--max-tokens" in refused.value.hint
    assert shape_for(2048, 256).turns == 3
    assert shape_for(131_072, 256).turns == 20
