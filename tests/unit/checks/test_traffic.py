"""What the counters around a stream show of an engine whose client disconnected."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

import pytest

from dflash_deploy.catalog import Questions
from dflash_deploy.checks import EndpointUnderTest
from dflash_deploy.checks.outcome import CheckOutcome, CheckSkipped
from dflash_deploy.checks.traffic import MOST_STREAMS, cancelled
from dflash_deploy.client import Endpoint, Metrics, SpecCounters

TOKENS = 1792
"""What the check asks for with a context of 2048 tokens."""


@dataclass
class Counted:
    """An endpoint whose counters are scripted: for each stream what /metrics says during it and after it.

    Each reading is the number of running requests and of tokens since the beginning of the stream. A clock that only
    passes with the streams makes each take `seconds`.
    """

    streams: list[tuple[tuple[int, int], tuple[int, int]]]
    seconds: float = 0.0
    model: str = "tiny"
    clock: float = 0.0
    asked: int = 0
    generated: int = 0
    readings: list[tuple[int, int]] = field(default_factory=list)

    def metrics(self) -> Metrics:
        running, made = self.readings.pop(0) if self.readings else (0, 0)
        self.generated += made
        return Metrics("vllm", SpecCounters(), self.generated, running)

    @contextmanager
    def events(self, body: Mapping[str, object]) -> Iterator[Iterator[None]]:
        assert body["max_tokens"] == TOKENS
        (running, during), (still, after) = self.streams[self.asked]
        self.asked += 1
        self.readings = [(running, during), (still, after - during)]
        yield iter([None] * 10)
        self.clock += self.seconds


def judged(endpoint: Counted, monkeypatch: pytest.MonkeyPatch) -> CheckOutcome:
    monkeypatch.setattr("dflash_deploy.checks.traffic.time.monotonic", lambda: endpoint.clock)
    return cancelled.run(EndpointUnderTest(cast("Endpoint", endpoint), Questions(), max_model_len=2048))


CANCELLED = ((1, 20), (0, 40))
OVER_BEFORE = ((0, TOKENS), (0, TOKENS))
OVER_AFTER = ((1, 20), (0, TOKENS))


def test_a_cancelled_answer_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = Counted([CANCELLED])
    assert judged(endpoint, monkeypatch).right
    assert endpoint.asked == 1


@pytest.mark.parametrize("over", [OVER_BEFORE, OVER_AFTER])
def test_a_short_answer_that_is_over_at_once_is_asked_for_again(
    over: tuple[tuple[int, int], tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = Counted([over, over, CANCELLED])
    assert judged(endpoint, monkeypatch).right
    assert endpoint.asked == MOST_STREAMS


def test_a_client_that_is_always_too_late_cannot_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckSkipped, match="before the client disconnected: running: 0 during the stream"):
        judged(Counted([OVER_BEFORE] * MOST_STREAMS), monkeypatch)


def test_an_engine_that_generates_all_tokens_each_time_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = judged(Counted([OVER_AFTER] * MOST_STREAMS), monkeypatch)
    assert not outcome.right
    assert "continues for disconnected clients" in outcome.hint


@pytest.mark.parametrize("over", [OVER_BEFORE, OVER_AFTER])
def test_a_long_answer_that_is_generated_whole_is_enough(
    over: tuple[tuple[int, int], tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = Counted([over], seconds=40.0)
    outcome = judged(endpoint, monkeypatch)
    assert not outcome.right
    assert "a proxy keeps their connections open" in outcome.hint
    assert endpoint.asked == 1


def test_counters_that_do_not_show_the_request_are_of_another_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = judged(Counted([((0, 0), (0, 0))]), monkeypatch)
    assert not outcome.right
    assert "another engine" in outcome.hint
