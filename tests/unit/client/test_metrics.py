"""The counters in the text that vLLM 0.32 serves at /metrics."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_deploy.client import SpecCounters, read_counters

TEXT = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 0.0
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="tiny"} 245.0
# HELP vllm:spec_decode_num_drafts_created Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_created gauge
vllm:spec_decode_num_drafts_created{engine="0",model_name="tiny"} 1.795e+09
# HELP vllm:spec_decode_num_draft_tokens_total Number of draft tokens.
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="tiny"} 735.0
# HELP vllm:spec_decode_num_accepted_tokens_total Number of accepted tokens.
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="tiny"} 490.0
# HELP vllm:spec_decode_num_accepted_tokens_per_pos_total Accepted tokens per draft position.
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="tiny",position="0"} 240.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="tiny",position="1"} 150.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="tiny",position="2"} 100.0
"""


def test_totals_and_positions() -> None:
    counted = read_counters(TEXT)
    assert counted == SpecCounters(245, 735, 490, (240, 150, 100))
    assert counted.acceptance_length == pytest.approx(3.0)
    assert counted.acceptance_by_position == pytest.approx((240 / 245, 150 / 245, 100 / 245))


def test_several_engines_are_added_up() -> None:
    lines = [
        line if line.startswith("#") else line + "\n" + line.replace('engine="0"', 'engine="1"')
        for line in TEXT.splitlines()
    ]
    assert read_counters("\n".join(lines) + "\n") == SpecCounters(490, 1470, 980, (480, 300, 200))


def test_without_a_drafter_all_is_zero() -> None:
    counted = read_counters("# TYPE a gauge\na 1\n")
    assert counted == SpecCounters()
    assert counted.acceptance_length is None
    assert counted.acceptance_by_position == ()


@given(st.lists(st.integers(0, 1000), min_size=3, max_size=3))
def test_a_window_is_the_difference_of_two_readings(gained: list[int]) -> None:
    before = read_counters(TEXT)
    after = SpecCounters(
        before.drafts + 7,
        before.draft_tokens + 21,
        before.accepted_tokens + sum(gained),
        tuple(was + more for was, more in zip(before.accepted_by_position, gained, strict=True)),
    )
    assert after - before == SpecCounters(7, 21, sum(gained), tuple(gained))
    assert (after - SpecCounters()) == after
