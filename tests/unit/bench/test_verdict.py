"""`bench` ends with whether drafts pay, and says why its figures may be wrong."""

from dataclasses import replace

import pytest

from dflash_deploy.bench.figures import Row
from dflash_deploy.bench.verdict import cautions, verdicts

ROW = Row(
    workload="code",
    concurrency=1,
    speculation="dflash",
    draft_tokens=7,
    tokens_per_s=100.0,
    rounds=(98.0, 100.0, 102.0),
    speedup=2.4,
    requests=30,
    failed=0,
    problem="",
    duration_s=60.0,
    requests_per_s=0.5,
    input_tokens=100,
    output_tokens=1000,
    ttft_ms=None,
    tpot_ms=None,
    itl_ms=None,
    acceptance_length=4.0,
    acceptance_by_position=(),
    counted=None,
)
PLAIN = replace(ROW, speculation="off", speedup=None)


def test_each_workload_has_a_verdict_by_concurrency() -> None:
    rows = [PLAIN, ROW, *(replace(ROW, concurrency=n, speedup=by) for n, by in ((2, 1.5), (4, 1.02), (8, 0.77)))]
    assert list(verdicts([*rows, replace(ROW, workload="chat")])) == [
        "verdict    code: drafts pay at concurrency 1 (2.40 times), 2 (1.50 times); change little at concurrency 4 "
        "(1.02 times); cost at concurrency 8 (0.77 times)",
        "verdict    chat: drafts pay at concurrency 1 (2.40 times)",
        "hint: `dflash-deploy tune` finds the draft tokens for this load",
    ]


@pytest.mark.parametrize(
    ("length", "ends"), [(7.78, "8.2 times as long as one without; a larger target gains more"), (1.3, "without")]
)
def test_drafts_that_cost_one_request_its_speed_say_why(length: float, ends: str) -> None:
    row = replace(ROW, speedup=0.949, acceptance_length=length)
    _, because, hint = verdicts([PLAIN, row, replace(row, concurrency=2)])
    assert because.startswith(f"because    a step with drafts adds {length:.2f} tokens, and takes ")
    assert because.endswith(ends)
    assert hint.startswith("hint: ")


def test_without_a_comparison_the_verdict_is_unknown() -> None:
    assert list(verdicts([replace(ROW, speedup=None)])) == [
        "verdict    unknown: only --baseline says whether drafts pay"
    ]


def test_sound_figures_need_no_caution() -> None:
    assert list(cautions([PLAIN, ROW], load=0.9, cores=2)) == []


def test_what_spoils_the_figures_is_named() -> None:
    unsteady = replace(ROW, rounds=(50.0, 100.0, 101.0), duration_s=1.0)
    assert list(cautions([ROW, unsteady], load=7.9, cores=2)) == [
        "busy       this machine had a load average of 7.9 on 2 cores before the run",
        "unsteady   repeats differ: code at concurrency 1 by 51 %",
        "short      1 of 2 measurements took less than 5 s (--requests N)",
    ]
    assert list(cautions([replace(ROW, rounds=(0.0,))], load=0, cores=2)) == [
        "unsteady   one repeat: small differences may be chance (--repeats 5)"
    ]


def talk(gains: list[float], cached: list[float | None], prompts: list[int]) -> list[Row]:
    """The turns of two agents, with prompts of this many tokens and shares in the prefix cache, and without drafts."""
    talking = replace(ROW, workload="agents", concurrency=2)
    made = [
        replace(talking, turn=at, speedup=gain, cached_share=share, input_tokens=30 * size)
        for at, (gain, share, size) in enumerate(zip(gains, cached, prompts, strict=True), 1)
    ]
    return [*made, *(replace(row, speculation="off", speedup=None) for row in made)]


def test_conversations_have_a_verdict_by_turn_and_one_of_the_prefix_cache() -> None:
    rows = talk([2.9, 2.0, 1.0, 0.4], [0.0, 0.5, 0.5, 0.8], [2000, 4000, 8000, 10_000])
    assert list(verdicts(rows)) == [
        "verdict    agents, concurrency 2: drafts pay in turns 1 to 2, from 2,000 tokens on (2.00 to 2.90 times); "
        "change little in turn 3, from 8,000 tokens on (1.00 times); cost in turn 4, from 10,000 tokens on (0.40 "
        "times)",
        "prefixes   agents, concurrency 2: the prefix cache keeps at least 100 % of the turn before",
        "hint: `dflash-deploy tune` finds the draft tokens for this load",
    ]


@pytest.mark.parametrize(
    ("cached", "says"),
    [
        ([0.0, 0.0, 0.0], "each turn reads its prompt again: prefix caching is off"),
        ([0.0, 0.5, 0.1], "the prefix cache keeps at least 15 % of the turn before; turn 3 reads its prompt again"),
        ([None, None, None], "the prefix cache is unknown: the engine reports no cached tokens"),
    ],
)
def test_a_turn_that_reads_its_prompt_again_is_named(cached: list[float | None], says: str) -> None:
    prefixes = [line for line in verdicts(talk([2, 2, 2], cached, [1000, 2000, 3000])) if line.startswith("prefixes")]
    assert prefixes == [f"prefixes   agents, concurrency 2: {says}"]
