"""What is predicted from a few measurements, and what is proposed."""

from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_deploy.plan.sizes import budget_for
from dflash_deploy.serve.settings import Settings
from dflash_deploy.tuning.choose import (
    NOISE,
    Option,
    between,
    choose,
    compare_head,
    compared,
    is_nowhere_slower,
    options,
    passed_over,
)
from dflash_deploy.tuning.model import Model, Point, fitted, point_of
from tests.support.measured import rows

ANSWER = 100.0
FIRST_S = 0.1


def made(draft_tokens: int, streams: int, step_s: float, acceptance: tuple[float, ...]) -> Point:
    """The point of an engine whose steps take so long, and whose positions are accepted so often."""
    length = 1 + sum(acceptance[:draft_tokens])
    answer_s = FIRST_S + ANSWER / length * step_s
    by_position = acceptance[:draft_tokens]
    return Point(draft_tokens, streams, streams * ANSWER / answer_s, FIRST_S, ANSWER, length, by_position)


def engine(
    acceptance: tuple[float, ...], *, counts: tuple[int, ...], streams: tuple[int, ...], plain_s: float = 0.010
) -> list[Point]:
    """All points of an engine whose steps take what `_step` says with its drafter, and `plain_s` and some without."""
    points = [made(0, at, plain_s * (1 + 0.05 * at), ()) for at in streams]
    return points + [made(k, at, _step(k, at), acceptance) for k in counts for at in streams]


def _step(draft_tokens: int, streams: int) -> float:
    return 0.014 + draft_tokens * (0.001 + 0.0005 * streams)


GOOD = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65)
POOR = (0.5, 0.25, 0.12, 0.06, 0.03, 0.01, 0.005)


@pytest.mark.parametrize("acceptance", [GOOD, POOR])
def test_two_numbers_of_draft_tokens_tell_all_others(acceptance: tuple[float, ...]) -> None:
    model = fitted(engine(acceptance, counts=(1, 7), streams=(1, 4)))
    assert model.lengths == pytest.approx([1 + sum(acceptance[:k]) for k in range(8)])
    for k in range(1, 8):
        for streams in (1, 4):
            truth = made(k, streams, _step(k, streams), acceptance).tokens_per_s
            assert model.rate(k, streams) == pytest.approx(truth), (k, streams)
    assert astuple(model.lines[4]) == pytest.approx((4, 0.014, 0.003))


def test_what_was_measured_counts_more_than_the_model() -> None:
    points = [*engine(GOOD, counts=(1, 7), streams=(1,)), made(3, 1, 0.5, GOOD)]
    model = fitted(points)
    assert model.rate(3, 1) == points[-1].tokens_per_s


def test_draft_tokens_never_make_a_step_shorter() -> None:
    model = fitted([made(0, 1, 0.01, ()), made(1, 1, 0.02, GOOD), made(7, 1, 0.018, GOOD)])
    assert astuple(model.lines[1]) == pytest.approx((1, 0.019, 0.0))


def test_a_row_becomes_a_point() -> None:
    drafted = next(row for row in rows() if row.speculation == "dflash")
    point = point_of(drafted, 7)
    assert (point.streams, point.draft_tokens, point.length) == (1, 7, drafted.acceptance_length)
    assert point.by_position == drafted.acceptance_by_position
    assert point.answer_tokens == 70
    # the first token comes after 20 ms and some, the others of the answer at the mean gap of each step
    assert point.step_s == pytest.approx(0.02 * 1.25 * (1 + 5.5 / 20) * 9 * point.length / 70, rel=0.01)
    plain = point_of(next(row for row in rows() if row.speculation == "off"), 0)
    assert (plain.length, plain.by_position) == (1.0, ())


def test_few_drafts_for_many_streams() -> None:
    def rising(k: int, streams: int) -> float:
        return 0.010 + 0.0015 * k * streams

    acceptance = (0.8, 0.6, 0.45, 0.34, 0.26, 0.2, 0.15)
    points = [made(0, at, 0.0098, ()) for at in (1, 2, 4, 8)]
    points += [made(k, at, rising(k, at), acceptance) for k in (1, 7) for at in (1, 2, 4, 8)]
    model = fitted(points)
    best = choose(options(model, max_num_seqs=16, scheduling=True), [model.rate(7, at) for at in model.streams])
    assert best.kind == "schedule"
    numbers = [tokens for _, _, tokens in best.ranges]
    assert numbers == sorted(numbers, reverse=True)
    assert (best.ranges[0][0], best.ranges[-1][1]) == (1, 16)
    # the engine's own reader takes it
    written = {"MODEL_PATH": "/m", "DFLASH_DRAFTER": "/d", **best.settings}
    drafter = Settings(written).speculation
    assert drafter is not None
    assert (drafter.schedule, drafter.draft_tokens) == (best.ranges, max(numbers))


def test_no_drafter_where_nothing_is_accepted() -> None:
    nothing = (0.0,) * 7
    model = fitted(engine(nothing, counts=(1, 7), streams=(1, 4)))
    best = choose(options(model, max_num_seqs=4, scheduling=True), [model.rate(7, at) for at in model.streams])
    assert (best.kind, best.settings) == ("off", {"DFLASH_DRAFTER": "off"})


def test_an_engine_without_schedules_gets_one_number() -> None:
    found = options(fitted(engine(POOR, counts=(1, 7), streams=(1, 8))), max_num_seqs=8, scheduling=False)
    assert {option.kind for option in found} == {"off", "fixed"}


def test_the_head_is_proposed_where_it_is_faster_than_the_drafter() -> None:
    model = fitted(engine(POOR, counts=(1, 7), streams=(1, 4)))
    plain = [model.rate(0, at) for at in model.streams]
    current = [model.rate(7, at) for at in model.streams]
    rates = [1.5 * max(rate, other) for rate, other in zip(plain, current, strict=True)]
    found = options(model, max_num_seqs=4, scheduling=True, heads={2: rates, 4: plain})
    best = choose(found, current)
    assert (best.kind, best.title, best.rates) == ("mtp", "MTP head, 2 draft tokens", tuple(rates))
    expected = {"DFLASH_DRAFTER": "mtp", "DFLASH_NUM_SPEC_TOKENS": "2", "DFLASH_SPEC_SCHEDULE": ""}
    assert best.settings == expected
    beside = compare_head(found)
    assert beside is not None
    assert beside.better
    assert beside.head == best.title


def test_head_and_drafter_are_compared_at_their_best() -> None:
    drafter, slow = Option("fixed", 7, (200.0, 400.0)), Option("fixed", 1, (100.0, 300.0))
    head = Option("mtp", 2, (100.0, 440.0))
    beside = compare_head([Option("off", 0, (90.0, 390.0)), drafter, slow, head, Option("mtp", 1, (90.0, 400.0))])
    assert beside is not None
    assert (beside.least, beside.most) == (0.5, 1.1)
    assert beside.gain == pytest.approx((0.5 * 1.1) ** 0.5)
    assert not beside.better
    assert beside.sentence == (
        "MTP head, 2 draft tokens: 0.74 times as fast (0.50 to 1.10 by concurrency) as the drafter with "
        "7 draft tokens: not the better choice"
    )
    assert compare_head([drafter, slow]) is None
    # faster by less than two runs of one setting differ
    near = compare_head([drafter, Option("mtp", 2, (201.0, 402.0))])
    assert near is not None
    assert not near.better


def test_what_loses_to_no_drafter_somewhere_is_named_and_not_taken() -> None:
    off, fast = Option("off", 0, (100.0, 400.0)), Option("fixed", 7, (300.0, 380.0))
    assert choose([off, fast], (90.0, 390.0)) is off
    assert passed_over([off, fast], off) is fast
    near = Option("fixed", 7, (300.0, 396.0))
    assert choose([off, near], (90.0, 390.0)) is near
    assert passed_over([off, near], near) is None


def test_what_is_there_gives_way_to_what_is_nowhere_slower_than_it() -> None:
    # no drafter would cost those who are alone more than it brings the others
    off, current, less = Option("off", 0, (100.0, 400.0)), Option("fixed", 7, (300.0, 300.0)), (290.0, 390.0)
    better = Option("schedule", 7, (300.0, 380.0), ((1, 1, 7), (2, 8, 1)))
    assert choose([off, current, better, Option("fixed", 3, less)], current.rates) is better


def test_a_gain_within_the_noise_does_not_win() -> None:
    assert not compared((101.0, 201.0), (100.0, 200.0)).wins
    verdict = compared((150.0, 195.0), (100.0, 200.0))
    assert verdict.wins
    assert verdict.least == pytest.approx(0.975)


def test_a_gain_counts_only_beyond_what_the_machine_itself_moved() -> None:
    assert between((100.0, 200.0), (110.0, 220.0), (101.0, 201.0)).wins
    # it became faster meanwhile, whatever was set
    moved = between((100.0, 200.0), (112.0, 224.0), (110.0, 220.0))
    assert moved.gain == pytest.approx(112 / 105)
    assert not moved.wins
    assert not between((110.0, 220.0), (112.0, 224.0), (100.0, 200.0)).wins


shares = st.lists(st.floats(0, 1), min_size=7, max_size=7).map(lambda drawn: tuple(sorted(drawn, reverse=True)))
seconds = st.floats(0.001, 1.0)


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Measurements of an engine that may do anything, with any noise."""
    streams = sorted(draw(st.sets(st.integers(1, 64), min_size=1, max_size=5)))
    counts = draw(st.sets(st.integers(1, 7), min_size=2, max_size=4)) | {7}
    acceptance = draw(shares)
    points = [made(0, at, draw(seconds), ()) for at in streams]
    return fitted([*points, *(made(k, at, draw(seconds), acceptance) for k in sorted(counts) for at in streams)])


@given(models(), st.integers(1, 128), st.booleans(), st.data())
def test_what_is_chosen_beats_no_drafter_or_what_is_there(
    model: Model, slots: int, scheduling: bool, data: st.DataObject
) -> None:
    found = options(model, max_num_seqs=slots, scheduling=scheduling)
    off = next(option for option in found if option.kind == "off")
    current = data.draw(st.sampled_from(found))
    best = choose(found, current.rates)
    safe = is_nowhere_slower(best.rates, off.rates)
    assert best.score >= current.score / (1 + NOISE)
    assert best.score >= off.score
    assert safe or is_nowhere_slower(best.rates, current.rates)
    # no fixed number that is as safe is faster
    for option in found:
        slower = not is_nowhere_slower(option.rates, off.rates)
        assert slower or option.score <= best.score


@given(models(), st.integers(1, 128))
def test_a_schedule_is_nowhere_slower_than_any_fixed_number(model: Model, slots: int) -> None:
    found = options(model, max_num_seqs=slots, scheduling=True)
    for schedule in (option for option in found if option.kind == "schedule"):
        for option in found:
            if option.kind == "fixed":
                assert all(ours >= rate for ours, rate in zip(schedule.rates, option.rates, strict=True))
        ends = [0, *(last for _, last, _ in schedule.ranges)]
        assert [first for first, _, _ in schedule.ranges] == [end + 1 for end in ends[:-1]]
        for streams, rate in zip(model.streams, schedule.rates, strict=True):
            tokens = next(number for first, last, number in schedule.ranges if first <= streams <= last)
            assert model.rate(tokens, streams) == rate


@given(st.integers(1, 512), st.integers(0, 31), st.integers(1, 65536), st.integers(0, 8192))
def test_a_budget_is_only_raised_and_holds_the_drafts(sequences: int, drafts: int, budget: int, prompts: int) -> None:
    found = budget_for(sequences, drafts, budget, prompts)
    assert found >= sequences * (drafts + 1) + prompts
    assert found == budget or (found > budget and found % 1024 == 0)
