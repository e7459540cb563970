"""From single times to figures."""

import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_deploy.bench.figures import quantile, row_of, spread
from dflash_deploy.bench.load import Load, Round, load_of
from dflash_deploy.bench.sweep import with_speedups
from dflash_deploy.client.metrics import Metrics
from dflash_deploy.client.stream import TimedCompletion
from dflash_deploy.serve.engines.counters import SpecCounters
from tests.support.measured import load, timed

SECONDS = st.lists(st.floats(0.0001, 100), min_size=2, max_size=60)


@given(SECONDS)
def test_quantiles_are_those_of_the_standard_library(seconds: list[float]) -> None:
    ordered = sorted(seconds)
    hundredths = statistics.quantiles(seconds, n=100, method="inclusive")
    for share in (1, 25, 50, 75, 95, 99):
        assert quantile(ordered, share / 100) == pytest.approx(hundredths[share - 1])


@given(SECONDS)
def test_a_spread_rises_and_holds_every_value(seconds: list[float]) -> None:
    found = spread(seconds)
    assert found is not None
    rising = [found.min, found.p25, found.p50, found.p75, found.p95, found.p99, found.max]
    assert rising == sorted(rising)
    assert (found.min, found.max) == pytest.approx((min(seconds) * 1000, max(seconds) * 1000))
    assert found.mean == pytest.approx(statistics.fmean(seconds) * 1000)


def test_tpot_leaves_the_first_token_out() -> None:
    # ten further tokens in 0.2 s after the first one, whatever the number of pieces
    assert timed(0.1, 0.1, chunks=3, tokens=11).tpot == pytest.approx(0.02)
    assert timed(0.1, 0.0, chunks=1, tokens=1).tpot is None


def test_a_row_counts_what_was_answered() -> None:
    answers = (timed(0.1, 0.1, 3, 11), timed(0.3, 0.1, 5, 21), TimedCompletion(problem="broke off"))
    counted = SpecCounters(drafts=4, draft_tokens=28, accepted_tokens=20, accepted_by_position=(4, 4, 4, 3, 2, 2, 1))
    row = row_of("code", Load(2, (Round(answers, 2.0), Round(answers[:1], 1.0)), counted), "dflash")
    assert (row.requests, row.failed, row.problem) == (3, 1, "broke off")
    assert row.rounds == (16.0, 11.0)
    assert row.tokens_per_s == 13.5
    assert row.requests_per_s == 1.0
    assert (row.input_tokens, row.output_tokens) == (60, 43)
    assert row.ttft_ms is not None
    assert row.ttft_ms.mean == pytest.approx(500 / 3)
    assert row.itl_ms is not None
    assert row.itl_ms.p99 == pytest.approx(100)
    assert (row.draft_tokens, row.acceptance_length) == (7, 6.0)
    assert row.acceptance_by_position[0] == 1.0


def test_what_the_engine_does_not_count_is_not_said() -> None:
    row = row_of("code", Load(1, load(1, tokens_per_chunk=1, gap=0.1).rounds, None), "dflash")
    assert (row.draft_tokens, row.acceptance_length, row.acceptance_by_position) == (None, None, ())


def test_the_counters_tell_whether_an_unknown_endpoint_drafts() -> None:
    loads = {None: None, False: SpecCounters(), True: SpecCounters(drafts=1, draft_tokens=7)}
    for drafter, counted in loads.items():
        row = row_of("code", Load(1, load(1, tokens_per_chunk=1, gap=0.1).rounds, counted), "unknown")
        assert row.document()["drafter"] is drafter
        assert row.document()["mtp"] is False


def test_a_round_without_answers_has_no_times() -> None:
    row = row_of("code", Load(1, (Round((TimedCompletion(problem="no"),), 1.0),), None), "off")
    assert (row.tokens_per_s, row.ttft_ms, row.tpot_ms, row.itl_ms) == (0.0, None, None, None)


def test_the_speed_up_is_over_the_same_workload_and_streams() -> None:
    drafted = [row_of("code", load(n, tokens_per_chunk=7, gap=0.02), "dflash") for n in (1, 2)]
    plain = [row_of("code", load(1, tokens_per_chunk=1, gap=0.02), "off")]
    first, beside, second = with_speedups(drafted, plain)
    assert first.speedup == pytest.approx(drafted[0].tokens_per_s / plain[0].tokens_per_s)
    assert beside == plain[0]
    assert (second.concurrency, second.speedup) == (2, None)


def test_the_engines_counter_says_what_was_cached_if_its_answers_do_not() -> None:
    answers = (TimedCompletion(0.5, 1.0, [], 1000, 50), TimedCompletion(0.5, 1.0, [], 1000, 50))
    counted = ((3, 500), (7, 2000))
    before, after = (Metrics("vllm", SpecCounters(drafts), 0, 0, cached_tokens=hits) for drafts, hits in counted)
    load = load_of(2, [Round(answers, 1.0)] * 2, [(before, after), (after, after)])
    assert (load.cached, load.counted) == (1500, SpecCounters(4))
    assert row_of("agents", load, "dflash", turn=1).cached_share == 1500 / 4000
    said = tuple(replace(one, cached_tokens=750) for one in answers)
    assert row_of("agents", replace(load, rounds=(Round(said, 1.0),)), "dflash", turn=1).cached_share == 0.75
    assert load_of(2, [Round(answers, 1.0)], [(before, None)]).counted is None
