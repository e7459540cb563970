"""What is predicted from a few measurements, and what is proposed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_deploy.bench.figures import Row
from dflash_deploy.plan.sizes import budget_for
from dflash_deploy.serve.settings import Settings
from dflash_deploy.tuning.choose import (
    NOISE,
    Model,
    Option,
    choose,
    gain_of,
    is_nowhere_slower,
    options,
    verdict,
)
from tests.support.measured import rows

ANSWER = 100
FIRST_S = 0.1
ROW = replace(rows()[0], requests=1, output_tokens=ANSWER)


def made(draft_tokens: int, concurrency: int, step_s: float, acceptance: tuple[float, ...]) -> Row:
    """The row of an engine whose steps take so long, and whose positions are accepted so often."""
    length = 1 + sum(acceptance[:draft_tokens])
    answer_s = FIRST_S + ANSWER / length * step_s
    assert ROW.ttft_ms is not None
    return replace(
        ROW,
        concurrency=concurrency,
        tokens_per_s=concurrency * ANSWER / answer_s,
        ttft_ms=replace(ROW.ttft_ms, mean=1000 * FIRST_S),
        acceptance_length=length if draft_tokens else None,
        acceptance_by_position=acceptance[:draft_tokens],
    )


def engine(
    acceptance: tuple[float, ...], *, counts: tuple[int, ...], at: tuple[int, ...], plain_s: float = 0.010
) -> Model:
    """An engine whose steps take what `_step` says with its drafter, and `plain_s` and some without."""
    measured = {0: [made(0, one, plain_s * (1 + 0.05 * one), ()) for one in at]}
    return Model(
        measured | {count: [made(count, one, _step(count, one), acceptance) for one in at] for count in counts}
    )


def _step(draft_tokens: int, concurrency: int) -> float:
    return 0.014 + draft_tokens * (0.001 + 0.0005 * concurrency)


def rates(model: Model, count: int) -> tuple[float, ...]:
    return tuple(model.rate(count, place) for place in range(len(model.rows[0])))


GOOD = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65)
POOR = (0.5, 0.25, 0.12, 0.06, 0.03, 0.01, 0.005)


@pytest.mark.parametrize("acceptance", [GOOD, POOR])
def test_two_numbers_of_draft_tokens_tell_all_others(acceptance: tuple[float, ...]) -> None:
    model = engine(acceptance, counts=(1, 7), at=(1, 4))
    assert model.lengths == pytest.approx([1 + sum(acceptance[:k]) for k in range(8)])
    for k in range(1, 8):
        for place, at in enumerate((1, 4)):
            truth = made(k, at, _step(k, at), acceptance).tokens_per_s
            assert model.rate(k, place) == pytest.approx(truth), (k, at)
    assert model.step(1) == pytest.approx((0.014, 0.003))


def test_what_was_measured_counts_more_than_the_model() -> None:
    model = engine(GOOD, counts=(1, 7), at=(1,))
    odd = made(3, 1, 0.5, GOOD)
    assert Model({**model.rows, 3: [odd]}).rate(3, 0) == odd.tokens_per_s


def test_draft_tokens_never_make_a_step_shorter() -> None:
    model = Model({0: [made(0, 1, 0.01, ())], 1: [made(1, 1, 0.02, GOOD)], 7: [made(7, 1, 0.018, GOOD)]})
    assert model.step(0) == pytest.approx((0.019, 0.0))


def test_the_step_of_a_measured_run_is_that_of_its_chunks() -> None:
    drafted = next(row for row in rows() if row.speculation == "dflash")
    # the first token comes after 20 ms and some, the others of the answer at the mean gap of each step
    steps = 70 / (drafted.acceptance_length or 1)
    assert Model({7: [drafted]}).step(0)[0] == pytest.approx(0.02 * 1.25 * (1 + 5.5 / 20) * 9 / steps, rel=0.01)


def test_few_drafts_for_many_streams() -> None:
    def rising(k: int, at: int) -> float:
        return 0.010 + 0.0015 * k * at

    acceptance, at = (0.8, 0.6, 0.45, 0.34, 0.26, 0.2, 0.15), (1, 2, 4, 8)
    measured = {0: [made(0, one, 0.0098, ()) for one in at]}
    model = Model(measured | {k: [made(k, one, rising(k, one), acceptance) for one in at] for k in (1, 7)})
    best = choose(options(model, max_num_seqs=16, scheduling=True), rates(model, 7))
    assert best.ranges
    numbers = [tokens for _, _, tokens in best.ranges]
    assert numbers == sorted(numbers, reverse=True)
    assert (best.ranges[0][0], best.ranges[-1][1]) == (1, 16)
    # the engine's own reader takes it
    drafter = Settings({"MODEL_PATH": "/m", "DFLASH_DRAFTER": "/d", **best.settings}).speculation
    assert drafter is not None
    assert (drafter.schedule, drafter.draft_tokens) == (best.ranges, max(numbers))


def test_no_drafter_where_nothing_is_accepted() -> None:
    model = engine((0.0,) * 7, counts=(1, 7), at=(1, 4))
    best = choose(options(model, max_num_seqs=4, scheduling=True), rates(model, 7))
    assert (best.title, best.settings) == ("no drafter", {"DFLASH_DRAFTER": "off"})


def test_an_engine_without_schedules_gets_one_number() -> None:
    found = options(engine(POOR, counts=(1, 7), at=(1, 8)), max_num_seqs=8, scheduling=False)
    assert [option.title for option in found][:3] == ["no drafter", "1 draft token", "2 draft tokens"]
    assert not any(option.ranges for option in found)


def test_what_loses_to_no_drafter_somewhere_is_not_taken() -> None:
    off, fast = Option(0, (100.0, 400.0)), Option(7, (300.0, 380.0))
    assert choose([off, fast], (90.0, 390.0)) is off
    near = Option(7, (300.0, 396.0))
    assert choose([off, near], (90.0, 390.0)) is near


def test_what_is_there_gives_way_to_what_is_nowhere_slower_than_it() -> None:
    # no drafter would cost those who are alone more than it brings the others
    off, current, less = Option(0, (100.0, 400.0)), Option(7, (300.0, 300.0)), (290.0, 390.0)
    better = Option(7, (300.0, 380.0), ((1, 1, 7), (2, 8, 1)))
    assert choose([off, current, better, Option(3, less)], current.rates) is better


def test_a_gain_within_the_noise_does_not_win() -> None:
    current = [(100.0, 200.0)] * 2
    assert not verdict([(101.0, 201.0)] * 2, current).wins
    found = verdict([(150.0, 195.0)] * 2, current)
    assert found.wins
    assert found.least == pytest.approx(0.975)


def test_a_gain_counts_only_beyond_what_two_runs_differ_by() -> None:
    assert verdict([(110.0, 220.0)], [(100.0, 200.0), (101.0, 201.0)]).wins
    # the machine became faster meanwhile, whatever was set
    moved = verdict([(112.0, 224.0)], [(100.0, 200.0), (110.0, 220.0)])
    assert moved.gain == pytest.approx(112 / 105)
    assert not moved.wins
    assert not verdict([(112.0, 224.0)], [(110.0, 220.0), (100.0, 200.0)]).wins
    # so do two runs of the proposal
    assert not verdict([(100.0, 200.0), (118.0, 236.0)], [(100.0, 200.0)] * 2).wins


shares = st.lists(st.floats(0, 1), min_size=7, max_size=7).map(lambda drawn: tuple(sorted(drawn, reverse=True)))
seconds = st.floats(0.001, 1.0)


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Measurements of an engine that may do anything, with any noise."""
    at = sorted(draw(st.sets(st.integers(1, 64), min_size=1, max_size=5)))
    counts = draw(st.sets(st.integers(1, 7), min_size=2, max_size=4)) | {7}
    acceptance = draw(shares)
    measured: Mapping[int, Sequence[Row]] = {
        count: [made(count, one, draw(seconds), acceptance) for one in at] for count in sorted({0, *counts})
    }
    return Model(measured)


@given(models(), st.integers(1, 128), st.booleans(), st.data())
def test_what_is_chosen_beats_no_drafter_or_what_is_there(
    model: Model, slots: int, scheduling: bool, data: st.DataObject
) -> None:
    found = options(model, max_num_seqs=slots, scheduling=scheduling)
    off, current = found[0], data.draw(st.sampled_from(found))
    best = choose(found, current.rates)
    safe = is_nowhere_slower(best.rates, off.rates)
    assert gain_of(best.rates, current.rates) >= (1 - 1e-9) / (1 + NOISE)
    assert gain_of(best.rates, off.rates) >= 1 - 1e-9
    assert safe or is_nowhere_slower(best.rates, current.rates)
    # no fixed number that is as safe is faster
    for option in found:
        slower = not is_nowhere_slower(option.rates, off.rates)
        assert slower or gain_of(option.rates, best.rates) <= 1 + 1e-9


@given(models(), st.integers(1, 128))
def test_a_schedule_is_nowhere_slower_than_any_fixed_number(model: Model, slots: int) -> None:
    found = options(model, max_num_seqs=slots, scheduling=True)
    for schedule in (option for option in found if option.ranges):
        for option in found[1:]:
            if not option.ranges:
                assert all(ours >= rate for ours, rate in zip(schedule.rates, option.rates, strict=True))
        ends = [0, *(last for _, last, _ in schedule.ranges)]
        assert [first for first, _, _ in schedule.ranges] == [end + 1 for end in ends[:-1]]
        for place, row in enumerate(model.rows[0]):
            tokens = next(number for first, last, number in schedule.ranges if first <= row.concurrency <= last)
            assert model.rate(tokens, place) == schedule.rates[place]


@given(st.integers(1, 512), st.integers(0, 31), st.integers(1, 65536), st.integers(0, 8192))
def test_a_budget_is_only_raised_and_holds_the_drafts(sequences: int, drafts: int, budget: int, prompts: int) -> None:
    found = budget_for(sequences, drafts, budget, prompts)
    assert found >= sequences * (drafts + 1) + prompts
    assert found == budget or (found > budget and found % 1024 == 0)
