"""`/health` of a real llama.cpp that hangs, and of one that is only busy. HANG_SECONDS is small here."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from dflash_deploy.deployment.directory import Deployment
from tests.support.cli import dflash, edit_env
from tests.support.commands import HANGS
from tests.support.llamacpp_native import connect, init, server_of

LIMIT = 3  # HANG_SECONDS of the deployment


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A deployment that `up` has started."""
    directory = tmp_path_factory.mktemp("hangs")
    init(directory)
    edit_env(directory, HANG_SECONDS=str(LIMIT))
    dflash("up", at=directory).succeeded()
    yield directory
    dflash("down", at=directory).succeeded()


@pytest.fixture
def client(served: Path) -> Iterator[httpx.Client]:
    """A client with the owner's key."""
    with connect(served) as endpoint:
        url = endpoint.url
    headers = {"Authorization": f"Bearer {Deployment(served).key.reveal()}"}
    with httpx.Client(base_url=url, headers=headers, timeout=HANGS) as made:
        yield made


def health(client: httpx.Client) -> httpx.Response | None:
    """The answer of /health without a key; `None` if there is none within a probe's time."""
    try:
        return httpx.get(f"{client.base_url}/health", timeout=2)
    except httpx.TimeoutException:
        return None


def until_503(client: httpx.Client) -> httpx.Response:
    deadline = time.monotonic() + HANGS
    while time.monotonic() < deadline:
        answer = health(client)
        if answer is not None and answer.status_code == 503:
            return answer
        time.sleep(0.2)
    raise AssertionError("/health never said 503")


def asked(tokens: int, **options: object) -> dict[str, object]:
    question = [{"role": "user", "content": "Count from 1 to 50."}]
    return {"model": "tiny", "messages": question, "max_tokens": tokens, "ignore_eos": True, **options}


def test_a_stopped_server_with_a_stream_in_flight_hangs_and_goes_on(served: Path, client: httpx.Client) -> None:
    assert client.get("/health").status_code == 200
    with client.stream("POST", "/v1/chat/completions", json=asked(800, stream=True)) as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith("data: ")
        server = server_of(served)
        os.kill(server, signal.SIGSTOP)
        try:
            said = until_503(client)
        finally:
            os.kill(server, signal.SIGCONT)
        error = said.json()["error"]
        assert (error["code"], error["message"]) == (
            "engine_hangs",
            f"requests are in flight, and the engine has done nothing for {LIMIT} s",
        )
        assert "data: [DONE]" in list(lines)
    assert client.get("/health").status_code == 200


def test_a_stopped_server_without_requests_is_not_called_a_hang(served: Path, client: httpx.Client) -> None:
    server = server_of(served)
    os.kill(server, signal.SIGSTOP)
    try:
        # /health passes to the engine, which does not answer: a probe's own time limit shows that
        assert health(client) is None
    finally:
        os.kill(server, signal.SIGCONT)
    assert client.get("/health").status_code == 200


def test_the_counters_move_while_an_answer_is_silent(client: httpx.Client) -> None:
    """What tells a long answer that is not streamed from a hang."""
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(client.post, "/v1/chat/completions", json=asked(900))
        seen = set()
        while not answer.done():
            text = client.get("/metrics").text
            time.sleep(0.05)
            seen.add("\n".join(line for line in text.splitlines() if line.startswith("llamacpp:")))
        assert answer.result().json()["usage"]["completion_tokens"] == 900
    assert len(seen) > 3
