"""The speed model against what others published, and where it must not go."""

import pytest

from benchmarks.speed_model import FITTED, compared, median_error
from dflash_deploy.catalog import load_catalog
from dflash_deploy.catalog.models import Acceptance
from dflash_deploy.plan.speed import SPREAD, at_draft_tokens, best_draft_tokens, bytes_read, predict

CATALOG = load_catalog()
ROWS = list(compared())


@pytest.mark.parametrize("drafting", [False, True])
def test_the_median_error_is_at_most_a_fifth(drafting: bool) -> None:
    assert median_error([row for row in ROWS if row.drafting == drafting]) <= 0.2


def test_it_is_at_most_a_fifth_on_hardware_that_it_was_not_fitted_to() -> None:
    assert median_error([row for row in ROWS if row.published.profile not in FITTED]) <= 0.2


def test_nine_of_ten_fitted_figures_lie_within_the_spread() -> None:
    fitted = [row for row in ROWS if row.fitted]
    assert sum(abs(row.error) <= SPREAD for row in fitted) >= 0.9 * len(fitted)


def test_the_tables_of_the_seeds_are_all_there() -> None:
    b200 = {(row.published.concurrency, row.published.draft_tokens) for row in ROWS if row.published.profile == "b200"}
    assert {(streams, drafts) for streams in (1, 8, 16, 32) for drafts in (7, 15)} <= b200
    assert {row.published.profile for row in ROWS} >= {"b200", "dgx-spark", "h100", "rtx-3090"}


def test_nothing_is_predicted_for_a_processor() -> None:
    assert predict(CATALOG.profiles["cpu"], CATALOG.pairs["tiny"], concurrency=1, draft_tokens=7) is None


def test_many_streams_want_fewer_drafts() -> None:
    profile, pair = CATALOG.profiles["b200"], CATALOG.pairs["qwen3.5-27b-bf16"]
    best = [best_draft_tokens(profile, pair, concurrency=streams) for streams in (1, 8, 32, 128)]
    assert best == sorted(best, reverse=True)
    assert best[0] > best[-1]


def test_an_acceptance_length_is_carried_over_to_other_numbers_of_drafts() -> None:
    measured = Acceptance(workload="MATH-500", draft_tokens=15, length=7.93, source="z-lab card")
    assert at_draft_tokens(measured, 15) == pytest.approx(7.93, abs=0.01)
    # the card's own figure for 7
    assert at_draft_tokens(measured, 7) == pytest.approx(5.90, rel=0.1)
    assert 1.0 < at_draft_tokens(measured, 1) < 2.0


def test_of_a_mixture_of_experts_a_step_reads_the_chosen_ones() -> None:
    pair = CATALOG.pairs["qwen3.6-35b-a3b-bf16"]
    assert bytes_read(pair, 1) < 0.25 * pair.target.bytes
    assert bytes_read(pair, 1) < bytes_read(pair, 16) < bytes_read(pair, 100_000) < pair.target.bytes
