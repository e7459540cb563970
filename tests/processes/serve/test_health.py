"""The health check: what it remembers, when it ends an engine, and what it asks over the wire."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_deploy.serve.gateway import health
from dflash_deploy.serve.gateway.health import HUNG_AFTER, RESTARTS, WITHIN, Memory, after, check
from tests.support.serving import Quiet, listening


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What plays the engine here is never hung, only slow where the machine is busy."""
    monkeypatch.setattr(health, "LISTENS", 30.0)
    monkeypatch.setattr(health, "ANSWERS", 30.0)


def test_an_engine_that_works_is_left_alone() -> None:
    memory = Memory("a", silent=HUNG_AFTER - 1)
    assert after(memory, 100.0, counts="b", answered=None) == (Memory("b"), False)
    assert after(memory, 100.0, counts="a", answered=True) == (Memory("a", asked=100.0), False)
    # nothing was asked, since it answered a while ago
    assert after(Memory("a", asked=50.0), 100.0, counts="a", answered=None) == (Memory("a", asked=50.0), False)


def test_one_that_hangs_is_ended_a_few_times_an_hour(tmp_path: Path) -> None:
    memory, now, ends = Memory("a"), 0.0, []
    for _ in range(HUNG_AFTER * (RESTARTS + 3)):
        now += 30.0
        memory, end = after(memory, now, counts="a", answered=False)
        if end:
            ends.append(now)
            # it starts anew, and hangs again with the same counts
            memory = Memory("a", restarts=memory.restarts)
    assert len(ends) == RESTARTS
    assert ends[0] == HUNG_AFTER * 30.0
    # an hour later it may be tried again
    memory, end = after(Memory("a", silent=HUNG_AFTER, restarts=tuple(ends)), now + WITHIN, counts="a", answered=False)
    assert end
    assert memory.restarts == (now + WITHIN,)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([None, True, False])), max_size=200))
def test_no_engine_is_ended_that_gave_a_sign_within_the_last_checks(looks: list[tuple[str, bool | None]]) -> None:
    memory, silent, counted = Memory(), 0, ""
    for number, (counts, answered) in enumerate(looks):
        sign = bool(answered) or answered is None or counts != counted
        silent, counted = (0 if sign else silent + 1), counts
        memory, end = after(memory, number * 30.0, counts=counts, answered=answered)
        assert not end or silent >= HUNG_AFTER
        if end:
            silent, counted = 0, ""


class Engine(Quiet, BaseHTTPRequestHandler):
    """Answers like vLLM behind the lock; what it does is set on the class."""

    works = True
    tokens = 1
    asked = 0
    running = 0
    shows = "vllm:generation_tokens_total"

    def do_GET(self) -> None:
        if self.path == "/health":
            self.send(200, "text/plain", b"")
        elif self.headers["Authorization"] == "Bearer the-key-of-the-tests":
            running = f'vllm:num_requests_running{{engine="0",model_name="m"}} {self.running:.1f}\n' * bool(
                self.running
            )
            counted = f'# HELP x\n{self.shows}{{model_name="m"}} {self.tokens}\n{running}python_info 1\n'
            self.send(200, "text/plain", counted.encode())
        else:
            self.send_error(401)

    def do_POST(self) -> None:
        type(self).asked += 1
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.works and body == {"model": "tiny", "prompt": "1", "max_tokens": 1}:
            self.send(200, "application/json", b"{}")
        else:
            self.send_error(503)


@contextmanager
def engine(**does: object) -> Iterator[tuple[int, type[Engine]]]:
    kind = type("Engine", (Engine,), does)
    with listening(kind) as url:
        yield int(url.rpartition(":")[2]), kind


ENVIRONMENT = {"VLLM_API_KEY": "the-key-of-the-tests", "SERVED_MODEL_NAME": "tiny other"}


def test_an_idle_engine_is_asked_now_and_then(tmp_path: Path) -> None:
    place = tmp_path / "memory.json"
    with engine() as (port, kind):
        assert check(port, ENVIRONMENT, place, now=0.0) == ""
        assert kind.asked == 0
        for now in (1000.0, 1030.0, 1060.0):
            assert check(port, ENVIRONMENT, place, now=now) == ""
        assert kind.asked == 1


def test_a_hung_one_is_ended_after_some_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []
    monkeypatch.setattr(health, "_end_engine", lambda: ended.append(True))
    place = tmp_path / "memory.json"
    with engine(works=False) as (port, _):
        said = [check(port, ENVIRONMENT, place, now=1000.0 + 30 * number) for number in range(HUNG_AFTER + 1)]
    assert said[0] == ""
    assert said[1] == "no sign of work in 1 checks"
    assert said[-1].endswith("to be started anew")
    assert ended == [True]


def test_one_with_requests_at_work_and_nothing_counted_is_asked_at_once(tmp_path: Path) -> None:
    place = tmp_path / "memory.json"
    with engine(running=2) as (port, kind):
        check(port, ENVIRONMENT, place, now=1000.0)
        check(port, ENVIRONMENT, place, now=1030.0)
        assert kind.asked == 1
        # it answered a moment ago, and all the same
        kind.works = False
        assert check(port, ENVIRONMENT, place, now=1060.0) == "no sign of work in 1 checks"
        kind.running = 0
        kind.works = True
        assert check(port, ENVIRONMENT, place, now=1090.0) == ""


def test_a_busy_one_that_does_not_answer_in_time_is_not_hung(tmp_path: Path) -> None:
    place = tmp_path / "memory.json"
    with engine(works=False) as (port, kind):
        for number in range(HUNG_AFTER * 2):
            kind.tokens += 1
            assert check(port, ENVIRONMENT, place, now=1000.0 * number) == ""
        assert kind.asked == 0


def test_an_engine_that_counts_otherwise_is_only_asked_whether_it_listens(tmp_path: Path) -> None:
    place = tmp_path / "memory.json"
    with engine(works=False, shows="llamacpp:tokens_predicted_total") as (port, kind):
        for number in range(HUNG_AFTER * 2):
            assert check(port, ENVIRONMENT, place, now=1000.0 * number) == ""
        assert kind.asked == 0
    assert check(port, ENVIRONMENT, place) == "nothing listens"
