"""The counters in the texts that vLLM 0.32, SGLang 0.5.23 and llama.cpp b11434 serve at /metrics."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_deploy.client.metrics import Metrics, read_metrics
from dflash_deploy.serve.engines.counters import SpecCounters

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

# Put together from the names, help texts and labels of observability/metrics_collector.py; no SGLang ran here.
SGLANG = """\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",tp_rank="0"} 2.0
# TYPE sglang:spec_accept_length gauge
sglang:spec_accept_length{model_name="m",tp_rank="0"} 3.4
# HELP sglang:spec_num_draft_tokens Currently active speculative_num_draft_tokens (decouples from steps under topk>1).
# TYPE sglang:spec_num_draft_tokens gauge
sglang:spec_num_draft_tokens{model_name="m",tp_rank="0"} 16.0
sglang:spec_num_draft_tokens{model_name="m",tp_rank="1"} 16.0
# HELP sglang:generation_tokens_total Number of generation tokens processed.
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{is_streaming="false",model_name="m"} 700.0
sglang:generation_tokens_total{is_streaming="true",model_name="m"} 300.0
# HELP sglang:num_requests_total Number of requests processed.
# TYPE sglang:num_requests_total counter
sglang:num_requests_total{is_streaming="false",model_name="m"} 40.0
sglang:num_requests_total{is_streaming="true",model_name="m"} 10.0
# HELP sglang:spec_verify_calls_total Number of speculative decoding verification calls.
# TYPE sglang:spec_verify_calls_total counter
sglang:spec_verify_calls_total{model_name="m"} 250.0
"""

# Put together from the format strings of tools/server/server-task.cpp; no llama-server ran here.
LLAMACPP = """\
# HELP llamacpp:tokens_predicted_total Number of generation tokens processed
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 1.23457e+06
# HELP llamacpp:n_tokens_max Largest observed sequence length (prompt + generation)
# TYPE llamacpp:n_tokens_max counter
llamacpp:n_tokens_max 300
# HELP llamacpp:spec_decode_num_draft_tokens_total Speculative: Total draft tokens generated
# TYPE llamacpp:spec_decode_num_draft_tokens_total counter
llamacpp:spec_decode_num_draft_tokens_total 300
# HELP llamacpp:spec_decode_num_accepted_tokens_total Speculative: Total draft tokens accepted by the target model
# TYPE llamacpp:spec_decode_num_accepted_tokens_total counter
llamacpp:spec_decode_num_accepted_tokens_total 150
# HELP llamacpp:spec_decode_num_drafts_total Speculative: Total speculative decoding verification steps
# TYPE llamacpp:spec_decode_num_drafts_total counter
llamacpp:spec_decode_num_drafts_total 100
# HELP llamacpp:requests_processing Number of requests processing
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 1
# HELP llamacpp:spec_decode_num_accepted_tokens_per_pos_total Accepted tokens per draft position
# TYPE llamacpp:spec_decode_num_accepted_tokens_per_pos_total counter
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 80
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 50
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="2"} 20
"""


def test_totals_and_positions() -> None:
    counted = read_metrics(TEXT).drafts
    assert counted == SpecCounters(245, 735, 490, (240, 150, 100))
    assert counted.acceptance_length == pytest.approx(3.0)
    assert counted.acceptance_by_position == pytest.approx((240 / 245, 150 / 245, 100 / 245))


def test_several_engines_are_added_up() -> None:
    lines = [
        line if line.startswith("#") else line + "\n" + line.replace('engine="0"', 'engine="1"')
        for line in TEXT.splitlines()
    ]
    assert read_metrics("\n".join(lines) + "\n").drafts == SpecCounters(490, 1470, 980, (480, 300, 200))


def test_without_a_drafter_all_is_zero() -> None:
    counted = read_metrics("# TYPE a gauge\na 1\n").drafts
    assert counted == SpecCounters()
    assert counted.acceptance_length is None
    assert counted.acceptance_by_position == ()


@given(st.lists(st.integers(0, 1000), min_size=3, max_size=3))
def test_a_window_is_the_difference_of_two_readings(gained: list[int]) -> None:
    before = read_metrics(TEXT).drafts
    after = SpecCounters(
        before.drafts + 7,
        before.draft_tokens + 21,
        before.accepted_tokens + sum(gained),
        tuple(was + more for was, more in zip(before.accepted_by_position, gained, strict=True)),
    )
    assert after - before == SpecCounters(7, 21, sum(gained), tuple(gained))
    assert (after - SpecCounters()) == after


def test_sglang_counts_verifications() -> None:
    read = read_metrics(SGLANG)
    # the first token of each of its 50 answers is no verification's
    assert read == Metrics("sglang", SpecCounters(250, 250 * 15, 700, per_step=15), 1000, 2)
    assert read.drafts.acceptance_length == pytest.approx(950 / 250)
    assert read.drafts.acceptance_by_position == ()


def test_draft_tokens_of_sglang_are_unknown_until_its_gauge_is_set() -> None:
    """The gauge of the block is 0 until the engine has decoded for 40 steps; before, no count of them is right."""
    early = read_metrics(SGLANG.replace("} 16.0", "} 0.0")).drafts
    assert early == SpecCounters(250, 0, 700)
    later = replace(read_metrics(SGLANG).drafts, drafts=260, accepted_tokens=730)
    assert later - early == SpecCounters(10, 150, 30, per_step=15)
    assert (early - SpecCounters(240, 0, 690)).draft_tokens == 0


def test_sglang_without_a_drafter_made_no_draft() -> None:
    plain = "\n".join(line for line in SGLANG.splitlines() if "spec_" not in line) + "\n"
    assert read_metrics(plain) == Metrics("sglang", SpecCounters(), 1000, 2)


def test_llamacpp_counts_as_vllm_does_under_its_own_prefix() -> None:
    read = read_metrics(LLAMACPP)
    assert read == Metrics("llamacpp", SpecCounters(100, 300, 150, (80, 50, 20)), 1234570, 1)


def test_the_engine_is_told_by_its_prefix() -> None:
    assert [read_metrics(text).engine for text in (TEXT, SGLANG, LLAMACPP, "up 1\n")] == [
        "vllm",
        "sglang",
        "llamacpp",
        None,
    ]


@pytest.mark.parametrize(
    ("engine", "waiting", "cache"),
    [
        ("vllm", "num_requests_waiting", "kv_cache_usage_perc"),
        ("sglang", "num_queue_reqs", "token_usage"),
        ("llamacpp", "requests_deferred", ""),
    ],
)
def test_who_waits_and_how_full_the_cache_is(engine: str, waiting: str, cache: str) -> None:
    text = "".join(
        f"# TYPE {engine}:{name} gauge\n"
        + "".join(f'{engine}:{name}{{engine="{n}"}} {v}\n' for n, v in enumerate(values))
        for name, values in ((waiting, (2, 3)), (cache, (0.25, 0.5)))
        if name
    )
    read = read_metrics(text)
    assert (read.engine, read.waiting, read.cache) == (engine, 5, 0.5 if cache else None)
    # an engine that does not say is not taken for an empty one
    assert read_metrics(f"# TYPE {engine}:{waiting} gauge\n{engine}:{waiting} 0\n").cache is None


@pytest.mark.parametrize(
    ("engine", "cached"),
    [("vllm", "prefix_cache_hits"), ("sglang", "cached_tokens"), ("llamacpp", "prompt_tokens_cached")],
)
def test_tokens_from_the_prefix_cache_are_counted_or_unknown(engine: str, cached: str) -> None:
    name = f"{engine}:{cached}_total"
    assert read_metrics(f'# TYPE {name} counter\n{name}{{a="1"}} 30\n{name}{{a="2"}} 12\n').cached_tokens == 42
    assert read_metrics(f"# TYPE {engine}:other gauge\n{engine}:other 1\n").cached_tokens is None
