"""The simulation against closed forms of queueing theory, and laws that hold for every queue."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_deploy.features.capacity.load_text import UserLoad
from dflash_deploy.features.capacity.simulation import Service, Simulated, simulate, simulated_times, thoughts

# simulations of a fixed seed: the same figures in every run
STEP = 0.001


def load(think_s: float, *, out: int, spread: float, prompt: int = 1) -> UserLoad:
    return UserLoad(1, think_s, prompt, out, spread, 1.0, None)


def server(most_sequences: int = 1) -> Service:
    """Each of up to `most_sequences` requests has its own server: a token takes STEP seconds, a prompt nothing."""
    return Service(((1.0, STEP), (float(most_sequences + 1), STEP)), 1.0, 0.0, 0.0, most_sequences, 10**6)


def machine_repair(users: int, servers: int, think_s: float, service_s: float) -> tuple[float, float]:
    """M/M/c with a finite number of users: requests per second, and mean seconds from request to answer.

    Kleinrock, Queueing Systems I, 3.8: a birth-death chain with (N - n) / Z arrivals and min(n, c) / S departures.
    """
    weights = [1.0]
    for busy in range(1, users + 1):
        weights.append(weights[-1] * (users - busy + 1) / think_s * service_s / min(busy, servers))
    shares = [weight / sum(weights) for weight in weights]
    rate = sum(share * min(busy, servers) / service_s for busy, share in enumerate(shares))
    return rate, sum(share * busy for busy, share in enumerate(shares)) / rate


@pytest.mark.parametrize(("users", "servers"), [(1, 1), (5, 1), (20, 1), (20, 4), (60, 8)])
def test_a_closed_queue_with_exponential_service_is_the_machine_repair_model(users: int, servers: int) -> None:
    mean_s, think_s = 2.0, 20.0
    found = simulate(server(servers), load(think_s, out=2000, spread=1.0), users, requests=8000)
    rate, seconds = machine_repair(users, servers, think_s, mean_s)
    assert found.requests_per_s == pytest.approx(rate, rel=0.04)
    assert found.answer_mean_s == pytest.approx(seconds, rel=0.08)


@pytest.mark.parametrize(("spread", "factor"), [(0.0, 0.5), (1.0, 1.0)], ids=["M/D/1", "M/M/1"])
def test_many_users_who_think_long_are_an_open_queue(spread: float, factor: float) -> None:
    """Pollaczek and Khinchine: the wait is `load x service / (1 - load)`, and half of it for equal requests."""
    users, service_s, busy = 1500, 1.0, 0.5
    think_s = users * service_s / busy - service_s
    found = simulate(server(), load(think_s, out=1000, spread=spread), users, requests=12_000)
    wait = factor * busy * service_s / (1 - busy)
    assert found.answer_mean_s == pytest.approx(service_s + wait, rel=0.06)


SERVICES = st.builds(
    lambda base, each, length, prompt, latency, most_sequences, chunk: Service(
        ((1.0, base), (8.0, base + 7 * each)), length, prompt, latency, most_sequences, chunk
    ),
    st.floats(0.001, 0.05),
    st.floats(0.0, 0.01),
    st.floats(1.0, 8.0),
    st.floats(0.0, 0.0005),
    st.floats(0.0, 0.05),
    st.integers(1, 16),
    st.sampled_from([64, 512, 8192]),
)
LOADS = st.builds(
    lambda think, prompt, out, spread: UserLoad(1, think, prompt, out, spread, 1.0, None),
    st.floats(0.0, 10.0),
    st.integers(1, 1000),
    st.integers(1, 300),
    st.sampled_from([0.0, 0.5, 1.0]),
)


@settings(max_examples=25, deadline=None)
@given(SERVICES, LOADS, st.integers(1, 30))
def test_littles_law_holds_in_the_engine_and_for_users(service: Service, asked: UserLoad, users: int) -> None:
    found = simulate(service, asked, users, requests=600)
    # requests in flight at the ends of what is counted make the difference
    edge = 2 * users / found.requests + 0.01
    assert found.sequences == pytest.approx(found.requests_per_s * found.answer_mean_s, rel=edge)
    assert found.sequences <= users + 1e-9
    assert found.ttft_p50_s <= found.ttft_p95_s <= found.answer_p95_s
    # nobody gets an answer faster than an engine of its own would give it
    assert found.tokens_per_s <= users * found.tokens_per_s / found.sequences * (1 + edge)


@settings(max_examples=25, deadline=None)
@given(SERVICES, st.integers(1, 16), st.integers(1, 800), st.integers(1, 300))
def test_without_thought_throughput_is_that_of_the_closed_loop(
    service: Service, users: int, prompt: int, out: int
) -> None:
    """Equal users go through the engine together: a round takes as long as the formula of `measured`."""
    service = Service(service.steps, service.tokens_per_step, service.prompt_token_s, service.latency_s, users, 10**6)
    found = simulate(service, UserLoad(users, 0.0, prompt, out, 0.0, 1.0, None), users, requests=600)
    steps = 1 + (out - 1) / service.tokens_per_step
    # a fraction of a step is a whole one for the slowest of a round
    rounds = service.latency_s + users * prompt * service.prompt_token_s
    fastest = rounds + math.floor(steps) * service.step_s(1)
    slowest = service.latency_s + users * prompt * service.prompt_token_s + (steps + 2) * service.step_s(users)
    assert users * out / slowest * 0.97 <= found.tokens_per_s <= users * out / fastest * 1.35 + 1e-6
    if steps == int(steps) and not service.latency_s:
        assert found.tokens_per_s == pytest.approx(users * out / (rounds + steps * service.step_s(users)), rel=0.05)


def test_whole_steps_give_the_closed_loop_exactly() -> None:
    service = Service(((1.0, 0.02), (8.0, 0.05)), 4.0, 0.0001, 0.01, 8, 10**6)
    found = simulate(service, UserLoad(8, 0.0, 500, 401, 0.0, 1.0, None), 8, requests=1600)
    assert found.tokens_per_s == pytest.approx(8 * 401 / (0.01 + 8 * 500 * 0.0001 + 101 * 0.05), rel=0.001)
    assert found.ttft_p95_s == pytest.approx(0.01 + 8 * 500 * 0.0001 + 0.05, rel=0.001)


def test_a_request_waits_for_the_end_of_the_step_in_which_it_arrives() -> None:
    """Two users of one engine: the second one's first token comes with the step after the one that runs."""
    service = Service(((1.0, 1.0),), 1.0, 0.0, 0.0, 8, 100)
    alone = simulate(service, load(50.0, out=20, spread=0.0), 1, requests=200)
    assert alone.ttft_p95_s == pytest.approx(1.0)
    assert alone.answer_p95_s == pytest.approx(20.0)
    steps = Service(((1.0, 1.0), (9.0, 1.0)), 1.0, 0.0, 0.0, 8, 100)
    many = simulate(steps, load(5.0, out=20, spread=0.0), 8, requests=2000)
    assert 1.4 <= many.ttft_p50_s <= 1.6
    assert many.ttft_p95_s <= 2.0 + 1e-6


def test_a_long_prompt_takes_as_many_steps_as_its_chunks() -> None:
    service = Service(((1.0, 1.0), (9.0, 1.0)), 1.0, 0.01, 0.0, 8, 100)
    one = simulate(service, UserLoad(1, 10.0, 250, 1, 0.0, 9.0, None), 1, requests=100)
    assert one.ttft_p50_s == pytest.approx(3 * 1.0 + 250 * 0.01)


def test_each_step_of_a_prompt_has_the_time_of_the_sequences_beside_it() -> None:
    service = Service(((1.0, 1.0), (2.0, 3.0)), 1.0, 0.01, 0.0, 8, 100, prompt_steps=2)
    alone = simulate(service, UserLoad(1, 10.0, 50, 1, 0.0, 9.0, None), 1, requests=100)
    assert alone.ttft_p50_s == pytest.approx(1.0 + 50 * 0.01)
    both = simulate(service, UserLoad(1, 0.0, 50, 400, 0.5, 9.0, None), 2, requests=100)
    # a step of both with the prompt, and a step of the other one
    assert both.ttft_p50_s == pytest.approx(3.0 + 50 * 0.01 + 1.0, rel=0.05)


def test_a_prompt_of_many_chunks_needs_no_further_steps() -> None:
    one, two = (Service(((1.0, 1.0),), 1.0, 0.01, 0.0, 8, 100, prompt_steps=steps) for steps in (1, 2))
    load_of = UserLoad(1, 10.0, 250, 1, 0.0, 9.0, None)
    assert simulate(one, load_of, 1, requests=50) == simulate(two, load_of, 1, requests=50)


def test_users_of_a_real_load_can_think_as_long_as_the_simulated_ones() -> None:
    """Alone, a user's requests are one time of thought and one answer apart."""
    thinks = list(itertools.islice(thoughts(5.0, 0, seed=3), 100))
    found = simulated_times(server(), load(5.0, out=500, spread=0.0), 1, requests=99, skip=1, seed=3)
    assert 99 * 500 / found.tokens_per_s == pytest.approx(sum(thinks[1:]) + 99 * 500 * STEP)
    assert thinks != list(itertools.islice(thoughts(5.0, 1, seed=3), 100))


def test_the_same_seed_gives_the_same_figures() -> None:
    def again(seed: int) -> Simulated:
        return simulate(server(4), load(5.0, out=500, spread=1.0), 6, requests=300, seed=seed)

    assert again(1) == again(1)
    assert again(1) != again(2)
