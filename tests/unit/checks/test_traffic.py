"""What the counters around a stream show of an engine whose client disconnected."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

import pytest

from dflash_deploy.catalog.models import Questions
from dflash_deploy.checks.check import CheckOutcome, CheckSkipped, EndpointUnderTest
from dflash_deploy.checks.traffic import MOST_STREAMS, NOTICE, PATIENCE, cancelled
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.client.metrics import Metrics
from dflash_deploy.serve.engines.counters import SpecCounters

TOKENS = 1792  # what the check asks for with a context of 2048 tokens


Reading = tuple[int, int]  # the running requests, and the tokens since the beginning of the stream


@dataclass
class Counted:
    """An endpoint whose counters are scripted: for each stream the reading during it and those behind it.

    A clock that only passes with the streams and with the pauses between readings makes each take `seconds` and
    `pause`. `others` are the requests of other clients that run while no stream does, one number for each reading.
    `seldom`: as SGLang, whose gauge of running requests is updated every 40 steps, and which counts an answer's tokens
    at its end; then each of `others` are tokens that were computed for other clients.
    """

    streams: list[tuple[Reading, ...]]
    others: list[int] = field(default_factory=list)
    seconds: float = 0.0
    pause: float = 0.0
    seldom: bool = False
    model: str = "tiny"
    clock: float = 0.0
    asked: int = 0
    generated: int = 0
    begun: int = 0
    computed: int = 0
    readings: list[Reading] = field(default_factory=list)

    def metrics(self) -> Metrics:
        if self.readings:
            running, made = self.readings.pop(0)
            self.generated = self.begun + made
        else:
            running = self.others.pop(0) if self.others else 0
        if self.seldom:
            self.computed += running
            made = self.generated - self.begun
            counted = self.begun + made * (made >= TOKENS)
            return Metrics("sglang", SpecCounters(), counted, 0, computed=100 + self.computed + self.generated)
        return Metrics("vllm", SpecCounters(), self.generated, running)

    def sleep(self, _: float) -> None:
        self.clock += self.pause

    @contextmanager
    def events(self, body: Mapping[str, object]) -> Iterator[Iterator[None]]:
        assert body["max_tokens"] == TOKENS
        self.begun, self.readings = self.generated, list(self.streams[self.asked])
        self.asked += 1
        yield iter([None] * 10)
        self.clock += self.seconds


def judged(endpoint: Counted, monkeypatch: pytest.MonkeyPatch) -> CheckOutcome:
    monkeypatch.setattr("dflash_deploy.checks.traffic.time.monotonic", lambda: endpoint.clock)
    monkeypatch.setattr("dflash_deploy.checks.traffic.time.sleep", endpoint.sleep)
    return cancelled.run(EndpointUnderTest(cast("Endpoint", endpoint), Questions(), max_model_len=2048))


CANCELLED = ((1, 20), (0, 40))
OVER_BEFORE = ((0, TOKENS), (0, TOKENS))
OVER_AFTER = ((1, 20), (0, TOKENS))
CONTINUED = ((1, 20), (1, 400), (1, 800), (0, TOKENS))


def test_a_cancelled_answer_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = Counted([CANCELLED])
    assert judged(endpoint, monkeypatch).right
    assert endpoint.asked == 1


@pytest.mark.parametrize("over", [OVER_BEFORE, OVER_AFTER, CONTINUED])
def test_a_short_answer_that_is_generated_whole_is_asked_for_again(
    over: tuple[Reading, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = Counted([over, over, CANCELLED], pause=NOTICE)
    assert judged(endpoint, monkeypatch).right
    assert endpoint.asked == MOST_STREAMS


@pytest.mark.parametrize(("over", "during"), [(OVER_BEFORE, 0), (OVER_AFTER, 1), (CONTINUED, 1)])
def test_a_client_that_is_always_too_late_cannot_tell(
    over: tuple[Reading, ...], during: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second was seen on two loaded cores, with an engine that generates 1792 tokens in three seconds."""
    with pytest.raises(CheckSkipped, match=f"before the engine could notice .* running: {during} during the stream"):
        judged(Counted([over] * MOST_STREAMS, pause=NOTICE / 2), monkeypatch)


def test_an_engine_that_generates_all_tokens_each_time_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = judged(Counted([CONTINUED] * MOST_STREAMS, pause=NOTICE), monkeypatch)
    assert not outcome.right
    assert "continues for disconnected clients" in outcome.hint


def test_a_long_answer_that_is_generated_whole_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = Counted([CONTINUED], seconds=40.0, pause=NOTICE)
    outcome = judged(endpoint, monkeypatch)
    assert not outcome.right
    assert "a proxy keeps their connections open" in outcome.hint
    assert endpoint.asked == 1


@pytest.mark.parametrize("over", [OVER_BEFORE, OVER_AFTER])
def test_a_long_answer_that_came_all_at_once_cannot_tell(
    over: tuple[Reading, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a proxy that buffers, which the check of streams names."""
    endpoint = Counted([over], seconds=40.0)
    with pytest.raises(CheckSkipped, match="before the engine could notice the disconnection"):
        judged(endpoint, monkeypatch)
    assert endpoint.asked == 1


def test_an_engine_that_does_not_stop_within_the_patience_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = judged(Counted([((1, 20), *(((1, 30),) * 20))], pause=1.0), monkeypatch)
    assert not outcome.right
    assert "1 after 5.0 s" in outcome.got


def test_counters_that_do_not_show_the_request_are_of_another_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = judged(Counted([((0, 0), (0, 0))]), monkeypatch)
    assert not outcome.right
    assert "another engine" in outcome.hint


def test_requests_of_other_clients_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = Counted([CANCELLED], others=[0, 2, 1, 1], pause=1.0)
    assert judged(endpoint, monkeypatch).right
    assert endpoint.clock == 3.0


def test_a_request_of_another_client_that_ends_meanwhile_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen where a fleet's hosts are tested at once: the checks of the door ask all engines."""
    # one request runs before the stream and one during it, which is the stream's own
    busy = [1] * 2
    with pytest.raises(CheckSkipped, match="requests of other clients ended meanwhile: running: 1 before, 1 during"):
        judged(Counted([CANCELLED] * MOST_STREAMS, others=[0, *busy * MOST_STREAMS], pause=PATIENCE), monkeypatch)
    assert judged(Counted([CANCELLED] * 2, others=[0, *busy], pause=PATIENCE), monkeypatch).right


def test_requests_of_other_clients_that_go_on_are_not_the_one_that_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two ends as the stream begins, and another one comes after it."""
    others_go_on = ((2, 20), *(((3, 40),) * 8))
    with pytest.raises(CheckSkipped, match="requests of other clients ended meanwhile: running: 2 before, 2 during"):
        judged(Counted([others_go_on], others=[0, 2, 2], pause=PATIENCE), monkeypatch)


def test_an_engine_whose_gauge_is_late_is_watched_by_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = Counted([((0, 20), (0, 40), (0, 60), (0, 60))], seldom=True, pause=1.0)
    outcome = judged(endpoint, monkeypatch)
    assert outcome.right
    assert outcome.got == "computed: 20 tokens during the stream, 40 after it; none more after 2.0 s"


def test_such_an_engine_that_does_not_stop_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = judged(Counted([tuple((0, 20 * n) for n in range(1, 20))], seldom=True, pause=1.0), monkeypatch)
    assert not outcome.right
    assert "continues for disconnected clients" in outcome.hint


def test_tokens_of_other_clients_of_such_an_engine_cannot_be_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = tuple((0, 20 * n) for n in range(1, 20))
    with pytest.raises(CheckSkipped, match="requests of other clients run"):
        judged(Counted([readings], others=[5] * 10, seldom=True, pause=1.0), monkeypatch)


def test_such_an_engine_that_computed_nothing_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = judged(Counted([((0, 0), (0, 0), (0, 0))], seldom=True, pause=1.0), monkeypatch)
    assert "another engine" in outcome.hint
