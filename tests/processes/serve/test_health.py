"""The health check over HTTP: what it asks an engine, and when it ends one."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from dflash_deploy.serve.gateway import health
from dflash_deploy.serve.gateway.health import HUNG_AFTER, check
from tests.support.serving import Quiet, listening


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What plays the engine here is never hung, only slow where the machine is busy."""
    monkeypatch.setattr(health, "LISTENS", 30.0)
    monkeypatch.setattr(health, "ANSWERS", 30.0)


class Engine(Quiet, BaseHTTPRequestHandler):
    """Answers like vLLM behind the lock; what it does is set on the class."""

    works = True
    hangs = False
    tokens = 1
    asked = 0
    running = 0
    shows = "vllm:generation_tokens_total"

    def do_GET(self) -> None:
        if self.path == "/health" and self.hangs:
            self.send(503, "application/json", b'{"error": {"code": "engine_hangs"}}')
        elif self.path == "/health":
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
    assert said[1] == "checks without progress: 1"
    assert said[-1].endswith("killed the engine, Docker restarts it")
    assert ended == [True]


def test_one_with_requests_at_work_and_nothing_counted_is_asked_at_once(tmp_path: Path) -> None:
    place = tmp_path / "memory.json"
    with engine(running=2) as (port, kind):
        check(port, ENVIRONMENT, place, now=1000.0)
        check(port, ENVIRONMENT, place, now=1030.0)
        assert kind.asked == 1
        # it answered a moment ago, and all the same
        kind.works = False
        assert check(port, ENVIRONMENT, place, now=1060.0) == "checks without progress: 1"
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
    assert check(port, ENVIRONMENT, place) == "the engine does not listen"


def test_a_hang_that_the_gateway_reports_is_counted_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[bool] = []
    monkeypatch.setattr(health, "_end_engine", lambda: ended.append(True))
    place = tmp_path / "memory.json"
    with engine(works=False, running=1, hangs=True) as (port, _):
        said = [check(port, ENVIRONMENT, place, now=1000.0 + 30 * number) for number in range(HUNG_AFTER + 1)]
    assert said[0] == health.HANGS
    assert said[1] == "checks without progress: 1"
    assert ended == [True]


def test_a_hang_of_an_engine_that_counts_otherwise_is_said_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "_end_engine", lambda: pytest.fail("it was ended"))
    place = tmp_path / "memory.json"
    with engine(works=False, hangs=True, shows="llamacpp:tokens_predicted_total") as (port, _):
        for number in range(HUNG_AFTER * 2):
            assert check(port, ENVIRONMENT, place, now=1000.0 * number) == health.HANGS
