"""Conversations of agents: what they send grows to the context, and what their figures mean."""

from itertools import pairwise
from typing import Any

import pytest

from dflash_deploy.bench.agent_figures import agent_verdicts, by_context, by_turn, stage_cells, stage_of, with_baseline
from dflash_deploy.bench.agents import PICTURE_TOKENS, AgentConversation, AgentShape, TurnLoad, shape_for, text_of
from dflash_deploy.bench.workload import Limits
from dflash_deploy.client.metrics import Metrics
from dflash_deploy.client.stream import TimedCompletion
from dflash_deploy.errors import BadInput
from dflash_deploy.operations.bench_agents import AgentsBenchmark
from dflash_deploy.serve.engines.counters import SpecCounters
from tests.support.measured import document
from tests.support.schemas import data_problems

CHARACTERS = 3.0


def size_of(messages: list[Any]) -> int:
    """Tokens of texts whose tokens have three characters, without pictures."""
    parts = [one["content"] if isinstance(one["content"], str) else one["content"][1]["text"] for one in messages]
    return int(sum(map(len, parts)) / CHARACTERS)


def prompts_of(agent: int, shape: AgentShape, answer: str = "short. ") -> list[list[Any]]:
    one, sent = AgentConversation(shape, "seed", agent, CHARACTERS), list[list[Any]]()
    for _ in range(shape.turns):
        messages = one.body("m", Limits())["messages"]
        assert isinstance(messages, list)
        sent.append(list(messages))
        one.heard(TimedCompletion(0.1, 1.0, [], size_of(sent[-1]), 2, text=answer))
    return sent


@pytest.mark.parametrize(("context", "turns"), [(2048, 4), (32_768, 20), (131_072, 20)])
def test_histories_grow_to_the_context_and_never_beyond(context: int, turns: int) -> None:
    shape = shape_for(context, turns, 64, pictures=True)
    for agent in range(4):
        sizes = [size_of(sent) for sent in prompts_of(agent, shape)]
        assert sizes == sorted(sizes)
        assert 0.8 * context - PICTURE_TOKENS < sizes[-1] + shape.answer < context


def test_each_turn_begins_with_all_of_the_turn_before_and_agents_share_only_their_system_prompt() -> None:
    shape = shape_for(16_384, 5, 64, pictures=True)
    first, second = prompts_of(0, shape), prompts_of(1, shape)
    assert all(later[: len(sent)] == sent for sent, later in pairwise(first))
    assert first[0][0] == second[0][0]
    assert first[0][1] != second[0][1]
    assert prompts_of(1, shape) == second
    pictures = [isinstance(one["content"], list) for one in first[-1]]
    assert sum(pictures) == 1
    assert not any(isinstance(one["content"], list) for one in second[-1])


def test_two_runs_differ_only_in_their_session() -> None:
    shape = shape_for(4096, 3, 64, pictures=False)
    runs = [AgentConversation(shape, "seed", 0, CHARACTERS, session) for session in ("1a", "2b")]
    first, second = (str(one.body("m", Limits())["messages"]) for one in runs)
    # from the beginning: a prefix cache keeps nothing of it
    assert first.index("1a") < 80
    assert first.replace("1a", "2b") == second


def test_a_turn_that_failed_is_not_part_of_the_history() -> None:
    one = AgentConversation(shape_for(4096, 3, 64, pictures=False), "seed", 0, CHARACTERS)
    one.body("m", Limits())
    one.heard(TimedCompletion(problem="refused"))
    assert [message["role"] for message in one.messages] == ["system"]


def test_texts_depend_on_their_seed_only() -> None:
    assert text_of("file", "a", 5000) == text_of("file", "a", 5000) != text_of("file", "b", 5000)
    assert len(text_of("tools", "a", 777)) == 777


@pytest.mark.parametrize(
    ("context", "turns", "says"), [(2048, 20, "--turns 3 fits"), (512, None, "--max-tokens"), (300, 2, "--max-tokens")]
)
def test_conversations_that_do_not_fit_are_refused(context: int, turns: int | None, says: str) -> None:
    with pytest.raises(BadInput) as refused:
        shape_for(context, turns, 256, pictures=False)
    assert says in refused.value.hint
    assert shape_for(2048, None, 256, pictures=False).turns == 3
    assert shape_for(131_072, None, 256, pictures=False).turns == 20


def turn(
    number: int, prompt: int, cached: int | None, *, gap: float, length: float | None = None, memory: int = 2**30
) -> TurnLoad:
    """Two answers of 50 tokens."""
    one = TimedCompletion(0.5, 0.5 + 49 * gap, [], prompt, 50, cached_tokens=cached)
    drafts = SpecCounters(100, 700, int(100 * ((length or 1) - 1))) if length else SpecCounters()
    return TurnLoad(
        number, (one, one), Metrics("vllm", SpecCounters(), 0, 0), Metrics("vllm", drafts, 100, 0), 1, memory
    )


def stages(gains: list[float]) -> tuple[Any, Any]:
    """Turns of 2K, 4K, … tokens; `gains` are the speed-ups of their decoding."""
    drafted = [turn(n, 2000 * 2**n, 1900, gap=0.5 / gain, length=4) for n, gain in enumerate(gains)]
    plain = [turn(n, 2000 * 2**n, 1900, gap=0.5) for n in range(len(gains))]
    made = [with_baseline(make([drafted], "dflash"), make([plain], "off")) for make in (by_turn, by_context)]
    return made[0], made[1]


@pytest.mark.parametrize(
    ("gains", "says"),
    [
        ([3, 2, 0.5, 0.4], "from 8K on the drafter costs more than it gains (0.4"),
        ([3, 0.5, 2], "drafts cost speed at 4K, but not beyond"),
        ([3, 2], "drafts pay at 2K (2.88 times), 4K (1.96"),
        ([1, 1], "drafts change little at any length"),
    ],
)
def test_the_verdict_says_from_which_context_drafts_cost_more_than_they_gain(gains: list[float], says: str) -> None:
    assert says in next(agent_verdicts(*stages(gains)))


@pytest.mark.parametrize(
    ("cached", "says"),
    [
        ([0, 0, 0], "turn 2 reads its prompt again: prefix caching is off"),
        ([0, 1000, 0], "turn 3 reads its prompt again: the prefix cache kept 0 % of the turn before"),
        ([0, 990, 1980], "the prefix cache keeps 99 % or more of the turn before"),
        ([None, None, None], "the prefix cache is unknown"),
    ],
)
def test_the_verdict_says_whether_a_turn_reads_its_prompt_again(cached: list[int | None], says: str) -> None:
    load = [turn(n + 1, 1000 * (n + 1), hits, gap=0.1, length=3) for n, hits in enumerate(cached)]
    assert any(says in line for line in agent_verdicts(by_turn([load], "dflash"), by_context([load], "dflash")))


def test_the_engines_counter_says_what_was_cached_if_its_answers_do_not() -> None:
    one = turn(1, 1000, None, gap=0.1)
    before, after = (Metrics("vllm", SpecCounters(), 0, 0, 0, None, hits) for hits in (500, 2000))
    counted = TurnLoad(1, one.requests, before, after, 0, None)
    assert stage_of(1, [counted], "off").cached_share == 0.75


def test_falling_acceptance_and_growing_memory_are_named_without_a_baseline() -> None:
    load = [turn(n, 2000 * 2**n, 0, gap=0.1, length=6 / n, memory=n * 2**30) for n in (1, 2, 3)]
    said = "\n".join(agent_verdicts(by_turn([load], "dflash"), by_context([load], "dflash")))
    assert "acceptance length falls from 6.00 at 4K to 2.00 at 16K; only --baseline" in said
    assert "grew from 1.00 to 3.00 GiB" in said
    assert "the queue was up to 1 long" in said


def test_the_document_fits_its_schema_and_the_page_plots_it() -> None:
    turns, contexts = stages([3, 2])
    how = {**document()["measured"], "agents": 2, "turns": 2, "context": 4096}
    done = AgentsBenchmark(how, turns, contexts, ("drafts <pay>",), None)
    assert data_problems("bench", done.document()) == []
    page = done.page()
    for row in (*turns, *contexts):
        assert f'data-x="{row.at}" data-y="{row.tokens_per_s!r}"' in page
        assert "<td>".join(f"{cell}</td>" for cell in stage_cells(row)) in page
    assert "drafts &lt;pay&gt;." in page
