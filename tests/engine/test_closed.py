"""The real engine's server is closed: nothing is answered without a key, except whether it lives."""

import http.client
import json
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from dflash_deploy.serve.engines.vllm import MIDDLEWARE
from tests.engine.conftest import FURTHER_KEY
from tests.support.commands import wait_until
from tests.support.routes import ELSEWHERE, Answered, Asked, answers
from tests.support.server import Server
from tools.reference.open_routes import security_table

KEY = "only-for-this-test-0123456789"
LOCKED = ("--middleware", MIDDLEWARE)
LIVENESS = {("GET", "/health"), ("HEAD", "/health")}
# All that a model can do and has routes for; the pooling tasks have theirs only where a model is loaded.
EVERYTHING = ("generate", "transcription", "realtime", "render")

Survey = list[Answered]


@pytest.fixture(scope="module")
def surveys() -> tuple[Survey, Survey, Survey]:
    """vLLM with the lock, as released, and with the lock and all routes of its development mode."""
    first, second, third = answers(
        [
            Asked(LOCKED),
            Asked(()),
            # last, since the variable stays
            Asked(LOCKED, EVERYTHING, (("VLLM_SERVER_DEV_MODE", "1"),)),
        ],
        KEY,
    )
    return first, second, third


def open_routes(survey: Survey) -> set[tuple[str, str]]:
    return {answer.route for answer in survey if answer.without != 401}


def test_no_route_opens_without_the_key_by_any_method(surveys: tuple[Survey, ...]) -> None:
    locked, _, developing = surveys
    assert sum(answer.routed for answer in locked) >= 35
    assert sum(answer.routed for answer in developing) > sum(answer.routed for answer in locked)
    for survey in (locked, developing):
        assert open_routes(survey) == LIVENESS


def test_every_route_opens_with_the_key(surveys: tuple[Survey, ...]) -> None:
    for survey in surveys:
        assert [answer.route for answer in survey if answer.with_key == 401] == []


def test_the_table_of_the_documentation_is_what_the_released_engine_does(surveys: tuple[Survey, ...]) -> None:
    locked, stock, *_ = surveys
    listed = {answer.route for answer in stock if answer.routed and answer.method != "HEAD"}
    opened = (open_routes(stock), open_routes(locked))
    measured = {route: tuple("open" if route in routes else "closed" for routes in opened) for route in listed}
    assert security_table() == measured
    assert sum(stock == "open" for stock, _ in measured.values()) == 17


def ask(
    server: Server, method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b"{}"
) -> tuple[int, dict[str, str], bytes]:
    """One request whose path goes out as it is written."""
    with server.connect() as endpoint:
        url = httpx.URL(endpoint.url)
    connection = http.client.HTTPConnection(url.host, url.port, timeout=300)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def x_api_key(key: str) -> dict[str, str]:
    return {"x-api-key": key}


def test_the_running_server_has_the_same_routes_and_closes_them(drafting: Server, surveys: tuple[Survey, ...]) -> None:
    locked = surveys[0]
    described = {
        (method.upper(), re.sub(r"{\w+}", "x", path))
        for path, methods in json.loads(ask(drafting, "GET", "/openapi.json", bearer(drafting.key))[2])["paths"].items()
        for method in methods
    }
    assert described == {answer.route for answer in locked if answer.described}
    status, _, nowhere = ask(drafting, "POST", ELSEWHERE[0], bearer(drafting.key))
    assert status == 404
    for method, path in sorted(answer.route for answer in locked if answer.routed):
        if (method, path) not in LIVENESS:
            assert ask(drafting, method, path)[0] == 401, (method, path)
            assert ask(drafting, method, path, bearer("wrong"))[0] == 401, (method, path)
            assert ask(drafting, method, path, x_api_key("wrong"))[0] == 401, (method, path)
            # two keys: neither of them counts
            both = bearer(drafting.key) | x_api_key(FURTHER_KEY)
            assert ask(drafting, method, path, both)[0] == 401, (method, path)
        status, _, said = ask(drafting, method, path, bearer(drafting.key))
        assert status != 401, (method, path)
        # the router of the running server has it too
        assert (status, said) != (404, nowhere), (method, path)
    for path in ELSEWHERE:
        assert ask(drafting, "GET", path)[0] == 401
    assert ask(drafting, "GET", "/health")[0] == 200


@pytest.mark.parametrize(
    "path", ["//health", "/health/", "/health/../v1/models", "/health%2f..%2fv1/models", "/./health", "/health;/v1"]
)
def test_a_detour_opens_nothing(drafting: Server, path: str) -> None:
    assert ask(drafting, "GET", path)[0] == 401


def test_the_refusal_is_one_that_clients_of_openai_read(drafting: Server) -> None:
    status, headers, body = ask(drafting, "POST", "/v1/chat/completions")
    assert (status, headers["www-authenticate"]) == (401, "Bearer")
    assert json.loads(body)["error"]["code"] == "invalid_api_key"
    status, headers, body = ask(drafting, "HEAD", "/v1/models")
    assert (status, headers["www-authenticate"], body) == (401, "Bearer", b"")


def test_a_websocket_is_not_opened(drafting: Server) -> None:
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    for path in ("/v1/realtime", "/health"):
        for given in ({}, bearer("wrong"), x_api_key("wrong"), bearer(drafting.key) | x_api_key("wrong")):
            status, headers, _ = ask(drafting, "GET", path, upgrade | given, b"")
            assert (status, headers["www-authenticate"]) == (401, "Bearer")


QUESTION = "What is the capital of France?"


@pytest.mark.parametrize("path", ["/invocations", "/v1/chat/completions"])
def test_a_question_is_answered_with_either_key_and_not_without(drafting: Server, path: str) -> None:
    with drafting.connect() as endpoint:
        body = {"model": endpoint.model, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 30}
    asked = json.dumps(body).encode()
    assert ask(drafting, "POST", path, body=asked)[0] == 401
    either = [(send, key) for send in (bearer, x_api_key) for key in (drafting.key, FURTHER_KEY)]
    for send, key in either:
        status, _, answer = ask(drafting, "POST", path, send(key), asked)
        assert status == 200
        assert json.loads(answer)["choices"][0]["message"]["content"]


MIB = b" " * (1 << 20)


def test_a_body_above_64_mib_is_refused_whole_or_in_pieces(drafting: Server) -> None:
    with drafting.connect() as endpoint:
        url = f"{endpoint.url}/v1/chat/completions"
    with httpx.Client(headers=bearer(drafting.key), trust_env=False, timeout=300) as client:
        for mib, expected in ((65, 413), (63, 400)):
            pieces = client.post(url, content=(MIB for _ in range(mib)))
            assert pieces.request.headers["transfer-encoding"] == "chunked"
            assert pieces.status_code == expected, pieces.text
        whole = client.post(url, content=MIB * 65)
        assert whole.status_code == 413
        assert whole.json()["error"]["code"] == "request_too_large"
        # the connection and the server are as good as before
        assert client.get(f"{endpoint.url}/v1/models").status_code == 200


@pytest.fixture
def listener() -> Iterator[tuple[int, list[bytes]]]:
    """A port of this machine, and what was said to it."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def listen() -> None:
            try:
                while True:
                    with listening.accept()[0] as connection:
                        heard.append(connection.recv(1000))
            except OSError:
                return

        thread = threading.Thread(target=listen)
        thread.start()
        yield listening.getsockname()[1], heard
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_no_address_that_a_client_names_is_fetched(drafting: Server, listener: tuple[int, list[bytes]]) -> None:
    port, heard = listener
    with drafting.connect() as endpoint:
        model = endpoint.model
    for address in (f"http://127.0.0.1:{port}/image.png", f"http://localhost:{port}/", "file:///etc/hostname"):
        parts = [{"type": "image_url", "image_url": {"url": address}}, {"type": "text", "text": "What is this?"}]
        body = {"model": model, "messages": [{"role": "user", "content": parts}], "max_tokens": 5}
        status, _, said = ask(drafting, "POST", "/v1/chat/completions", bearer(drafting.key), json.dumps(body).encode())
        assert status != 200
        assert b"data URI" in said
    assert heard == []
    # the listener does hear who comes
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"hello")
        connection.recv(1)
    assert heard == [b"hello"]


def test_the_health_check_is_not_in_the_log(drafting: Server) -> None:
    assert ask(drafting, "GET", "/health")[0] == 200
    assert ask(drafting, "GET", "/version?marked", bearer(drafting.key))[0] == 200
    assert ask(drafting, "GET", "/version", x_api_key(FURTHER_KEY))[0] == 200
    file = Path(drafting.directory, ".dflash/engine.log")
    # it comes through the supervisor, which may have other things to do
    assert wait_until(lambda: "GET /version?marked" in file.read_text(), 300)
    log = file.read_text()
    assert "GET /health " not in log
    assert FURTHER_KEY not in log
    assert drafting.key not in log
