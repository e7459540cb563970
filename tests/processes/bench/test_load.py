"""The load generator against an endpoint that answers to order."""

import pytest

from dflash_deploy.bench.load import Load, measure
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.redact import Secret
from tests.support.answering import KEY, MODEL, answer, answering, choice, event

BODY = {"model": MODEL, "messages": [{"role": "user", "content": "Go on."}]}


def loaded(events: list[bytes], *, key: str = KEY, refuse: bool = False, concurrency: int = 2) -> Load:
    with answering(events, refuse=refuse) as url, Endpoint(url, Secret(key), MODEL) as endpoint:
        return measure(endpoint, [BODY], concurrency=concurrency, requests=5, repeats=2)


def problems(load: Load) -> set[str]:
    return {request.problem for one in load.rounds for request in one.requests}


def test_every_request_of_every_repeat_is_timed() -> None:
    load = loaded(answer(chunks=30, tokens_per_chunk=4), concurrency=3)
    assert [len(one.answered) for one in load.rounds] == [5, 5]
    for one in load.rounds:
        for request in one.answered:
            # 30 pieces of text and the one that ends; the one that names the role is no token
            assert len(request.gaps) == 30
            assert (request.prompt_tokens, request.completion_tokens) == (10, 120)
            assert 0 < request.ttft <= request.seconds <= one.seconds
            assert sum(request.gaps) == pytest.approx(request.seconds - request.ttft)
    assert load.median == pytest.approx(sum(load.tokens_per_second) / 2)


def test_counters_that_cannot_be_read_are_none() -> None:
    assert loaded(answer(3)).counted is None


def test_an_answer_that_ends_at_once_is_an_answer() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 1}
    load = loaded([choice(role="assistant", content=""), choice("stop", content=""), event(choices=[], usage=usage)])
    assert problems(load) == {""}


def test_a_refusal_is_told_with_its_status() -> None:
    (problem,) = problems(loaded(answer(3), refuse=True))
    assert "answered 503" in problem
    (problem,) = problems(loaded(answer(3), key="wrong"))
    assert "answered 401" in problem


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([choice(content="a"), event(error={"message": "EngineDeadError"})], "EngineDeadError"),
        ([choice(role="assistant", content="")], "has no answer"),
        ([choice(content="a"), choice("stop", content="")], "did not report usage"),
        ([b"data: {half\n\n"], "unexpected event"),
        ([event(model="no choices here")], "unexpected event"),
    ],
    ids=["an error in the middle", "nothing but a role", "no usage", "half a document", "another shape"],
)
def test_a_stream_that_goes_wrong_is_a_failed_request(events: list[bytes], says: str) -> None:
    (problem,) = problems(loaded(events))
    assert says in problem
