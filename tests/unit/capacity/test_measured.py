"""The service of an engine from rows of `bench`, and from the speed model."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.features.capacity.load_text import UserLoad
from dflash_deploy.features.capacity.measured import expected_service, measured_service
from dflash_deploy.features.capacity.simulation import Service, rising, simulate
from dflash_deploy.intake.documents import BenchRow, BenchTimes

CATALOG = load_catalog()


def row_of(service: Service, clients: int, prompt: int, answer: int, *, workload: str = "code") -> BenchRow:
    """The row of a closed loop of equal requests: the engine of `service`, simulated."""
    found = simulate(service, UserLoad(clients, 0.0, prompt, answer, 0.0, 1.0, None), clients, requests=400)
    requests = 1000
    return BenchRow(
        workload=workload,
        concurrency=clients,
        drafter=service.tokens_per_step > 1,
        mtp=False,
        requests=requests,
        duration_s=requests / found.requests_per_s,
        input_tokens=prompt * requests,
        output_tokens=answer * requests,
        ttft_ms=BenchTimes(mean=1000 * found.ttft_p50_s),
        tpot_ms=BenchTimes(mean=1000 * (found.answer_mean_s - found.ttft_p50_s) / (answer - 1)),
        acceptance_length=service.tokens_per_step if service.tokens_per_step > 1 else None,
    )


ENGINE = Service(((1.0, 0.02), (4.0, 0.026), (16.0, 0.05)), 4.0, 0.0002, 0.015, 16, 8192)


def test_the_engine_behind_its_rows_is_found_again() -> None:
    rows = [
        row_of(ENGINE, clients, prompt, 401, workload=name)
        for clients in (1, 4, 16)
        for name, prompt in (("code", 100), ("chat", 900))
    ]
    found = measured_service(rows, most_sequences=16, chunk=8192)
    assert found is not None
    assert found.tokens_per_step == pytest.approx(4.0)
    assert found.prompt_token_s == pytest.approx(0.0002, rel=0.02)
    assert found.latency_s == pytest.approx(0.015, abs=0.002)
    for sequences in (1, 4, 16):
        assert found.step_s(sequences) == pytest.approx(ENGINE.step_s(sequences), rel=0.03)


def test_an_engine_with_two_steps_for_a_prompt_is_found_again() -> None:
    engine = replace(ENGINE, prompt_steps=2)
    rows = [row_of(engine, clients, prompt, 41) for clients in (1, 4) for prompt in (100, 900)]
    found = measured_service(rows, most_sequences=16, chunk=8192, prompt_steps=2)
    assert found is not None
    assert found.latency_s == pytest.approx(0.015, abs=0.002)
    assert found.step_s(1) == pytest.approx(ENGINE.step_s(1), rel=0.03)
    assert found.step_s(4) == pytest.approx(ENGINE.step_s(4), rel=0.1)


@settings(max_examples=15, deadline=None)
@given(
    st.floats(0.002, 0.05),
    st.floats(0.0, 0.004),
    st.sampled_from([1.0, 2.0, 4.0]),
    st.floats(0.0, 0.0004),
    st.integers(1, 12),
)
def test_without_thought_the_simulation_gives_the_measured_throughput(
    base: float, each: float, length: float, prompt_s: float, clients: int
) -> None:
    engine = Service(((1.0, base), (12.0, base + 11 * each)), length, prompt_s, 0.004, 12, 8192)
    row = row_of(engine, clients, 300, 201)
    service = measured_service([row], most_sequences=12, chunk=8192)
    assert service is not None
    again = simulate(service, UserLoad(clients, 0.0, 300, 201, 0.0, 1.0, None), clients, requests=400)
    assert again.tokens_per_s == pytest.approx(row.output_tokens / row.duration_s, rel=0.1)


def test_prompts_of_one_length_take_the_expected_time_within_what_was_measured() -> None:
    rows = [row_of(ENGINE, clients, 300, 401) for clients in (1, 4)]
    bound = measured_service(rows, most_sequences=4, chunk=8192)
    assert bound is not None
    # all of the time to the first token beyond a step: too much, since the latency is in it
    assert bound.prompt_token_s == pytest.approx(0.0002 + 0.015 / 300, rel=0.05)
    for expected, kept in ((0.0001, 0.0001), (1.0, bound.prompt_token_s)):
        found = measured_service(rows, most_sequences=4, chunk=8192, prompt_token_s=expected)
        assert found is not None
        assert found.prompt_token_s == pytest.approx(kept)


def test_at_the_end_of_a_round_fewer_requests_are_in_flight_than_clients() -> None:
    row = row_of(ENGINE, 8, 100, 401)
    # clients with nothing to send make the round longer, and no request slower
    longer = row.model_copy(update={"duration_s": row.duration_s * 1.6})
    found = measured_service([longer], most_sequences=16, chunk=8192)
    assert found is not None
    assert found.most_known == pytest.approx(5.0, rel=0.02)


def test_rows_without_times_tell_nothing() -> None:
    row = row_of(ENGINE, 1, 100, 401)
    empty = row.model_copy(update={"ttft_ms": None})
    assert measured_service([empty], most_sequences=4, chunk=100) is None
    assert measured_service([], most_sequences=4, chunk=100) is None


def test_beyond_what_is_known_steps_become_longer() -> None:
    one = Service(((4.0, 0.02),), 1.0, 0.0, 0.0, 64, 100)
    assert one.step_s(1) == 0.02
    assert one.step_s(16) == pytest.approx(0.08)
    assert ENGINE.step_s(28) == pytest.approx(0.05 + 12 * 0.002)


@given(st.lists(st.tuples(st.integers(1, 64).map(float), st.floats(-1, 1)), min_size=1, max_size=8))
def test_steps_rise_however_noisy_their_times_are(steps: list[tuple[float, float]]) -> None:
    service = Service(rising(steps), 1.0, 0.0, 0.0, 64, 100)
    times = [service.step_s(sequences) for sequences in range(1, 80)]
    assert all(0 < before <= after for before, after in pairwise(times))


def test_the_speed_model_expects_longer_steps_and_more_tokens_with_drafts() -> None:
    profile, pair = CATALOG.profiles["h100"], CATALOG.pairs["qwen3.5-27b-fp8"]
    plain, drafted = (
        expected_service(profile, pair, draft_tokens=drafts, most_sequences=32, chunk=8192) for drafts in (0, 7)
    )
    assert plain is not None
    assert drafted is not None
    assert plain.tokens_per_step == 1.0 < drafted.tokens_per_step
    assert all(drafted.step_s(number) > plain.step_s(number) for number in (1, 8, 32))
    assert drafted.prompt_token_s == plain.prompt_token_s > 0
    assert drafted.most_known == 32


def test_nothing_is_expected_of_a_processor() -> None:
    profile, pair = CATALOG.profiles["cpu"], CATALOG.pairs["tiny"]
    assert expected_service(profile, pair, draft_tokens=0, most_sequences=4, chunk=2048) is None
