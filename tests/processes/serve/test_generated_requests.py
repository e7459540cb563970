"""The gateway before a real application: generated requests are refused without a key, and none is an error of it.

The application has routes of vLLM 0.32 (its /openapi.json) and runs in uvicorn, as vLLM does.
"""

import random
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import schemathesis
import uvicorn
from fastapi import FastAPI, Request
from hypothesis import given, settings
from hypothesis import strategies as st
from schemathesis import Case
from starlette.responses import JSONResponse

from dflash_deploy.serve.gateway.auth import DenyByDefault

KEY = "the-only-key-of-this-test"
ENVIRONMENT = {"VLLM_API_KEY": KEY, "MAX_BODY_MIB": "1"}
REFUSED = frozenset({401, 404, 405})

MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {"role": {"enum": ["user", "system"]}, "content": {"type": "string"}},
}
CHAT = {
    "type": "object",
    "required": ["messages"],
    "properties": {
        "model": {"type": "string"},
        "messages": {"type": "array", "items": MESSAGE},
        "max_tokens": {"type": "integer"},
        "stream": {"type": "boolean"},
    },
}
TOKENS = {"type": "object", "properties": {"tokens": {"type": "array", "items": {"type": "integer"}}}}
RESPONSE = {"name": "response_id", "in": "path", "required": True, "schema": {"type": "string"}}


def _posted(schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"content": {"application/json": {"schema": schema}}}, "responses": {"200": {}}}


_ASKED: dict[str, Any] = {"responses": {"200": {}}}
PATHS: dict[str, dict[str, Any]] = {
    "/health": {"get": _ASKED, "head": _ASKED},
    "/load": {"get": _ASKED},
    "/metrics": {"get": _ASKED},
    "/ping": {"get": _ASKED, "post": _ASKED},
    "/version": {"get": _ASKED},
    "/tokenize": {"post": _posted(CHAT)},
    "/detokenize": {"post": _posted(TOKENS)},
    "/invocations": {"post": _posted(CHAT)},
    "/scale_elastic_ep": {"post": _posted({"type": "object"})},
    "/v1/models": {"get": _ASKED},
    "/v1/chat/completions": {"post": _posted(CHAT)},
    "/v1/completions": {"post": _posted({"type": "object", "properties": {"prompt": {"type": "string"}}})},
    "/v1/messages": {"post": _posted(CHAT)},
    "/v1/responses/{response_id}": {"get": {"parameters": [RESPONSE], **_ASKED}},
    "/v1/responses/{response_id}/cancel": {"post": {"parameters": [RESPONSE], **_ASKED}},
}
DOCUMENT = {"openapi": "3.1.0", "info": {"title": "vLLM", "version": "0.32.0"}, "paths": PATHS}


@dataclass
class Served:
    """The application behind the gateway, and the path of each request that reached it."""

    reached: list[str] = field(default_factory=list)

    @property
    def application(self) -> DenyByDefault:
        app = FastAPI(openapi_url=None)

        async def answer(request: Request) -> JSONResponse:
            self.reached.append(request.url.path)
            return JSONResponse({"bytes": len(await request.body())})

        for path, methods in PATHS.items():
            app.add_api_route(path, answer, methods=[method.upper() for method in methods])
        return DenyByDefault(app, ENVIRONMENT)

    def taken(self) -> int:
        """How many requests reached it since the last call."""
        count = len(self.reached)
        self.reached.clear()
        return count


SERVED = Served()
GATEWAY = SERVED.application
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
CASES = st.one_of(
    SCHEMA.as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE),
    SCHEMA.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE),
)
QUICK = settings(derandomize=True, max_examples=80, database=None)


@QUICK
@given(CASES)
def test_without_a_key_only_health_is_answered(case: Case[Any]) -> None:
    status = case.call(app=GATEWAY).status_code
    reached = SERVED.taken()
    if status not in REFUSED:
        assert (case.method.upper() in {"GET", "HEAD"}, case.formatted_path) == (True, "/health")
    else:
        assert reached == 0


@QUICK
@given(CASES, st.sampled_from(["Authorization", "x-api-key"]))
def test_with_the_key_every_request_is_the_applications(case: Case[Any], header: str) -> None:
    given = {"Authorization": f"Bearer {KEY}"} if header == "Authorization" else {header: KEY}
    # a generated header may be another key
    case.headers.clear()
    status = case.call(app=GATEWAY, headers=given).status_code
    assert status not in {401, 413}
    assert status < 500
    assert SERVED.taken() == (status == 200)


METHODS = (
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "OPTIONS",
    "TRACE",
    "CONNECT",
    "PATCH",
    "BREW",
    "get",
    "G",
    "X" * 300,
)
TARGETS = (
    *(path.format_map({"response_id": "x"}) for path in PATHS),
    *(
        "/health/",
        "//health",
        "/health//",
        "/./health",
        "/x/../health",
        "/health/../v1/models",
        "/health/%2e%2e/metrics",
    ),
    *("/%68ealth/../metrics", "/health%2f", "/health%2F..%2Fmetrics", "/health%00", "/health;x", "/health%0d%0ax: y"),
    *(
        "/HEALTH",
        "/health?/v1/models",
        "/v1/models?/health",
        "/v1%2fmodels",
        "/v1//models",
        "/v1/./models",
        "/\xff",
        "/%ff",
    ),
    *("http://engine/health/../v1/models", "http://engine/v1/models", "*", "engine:80", "/" + "a/" * 20_000, "/%", "?"),
    *("/docs", "/openapi.json", "/redoc", "/favicon.ico", "/v9/of/a/later/release"),
)
HEADERS = (
    *(
        "Authorization: Bearer wrong",
        "Authorization: Basic dXNlcjpwYXNz",
        "Authorization:",
        "x-api-key: \xfc",
        "Cookie: k=v",
    ),
    *(
        "X-Forwarded-Path: /health",
        "X-Original-URL: /health",
        "X-HTTP-Method-Override: GET",
        "Host: health",
        "Expect: nothing",
    ),
    *(
        "Upgrade: websocket\r\nConnection: upgrade\r\nSec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13",
        "Range: bytes=0-",
    ),
    *(
        "Origin: https://a\r\nAccess-Control-Request-Method: POST",
        "X: " + "y" * 30_000,
        "Transfer-Encoding: identity, chunked",
    ),
    *(
        "Content-Length: 99999999999999999999",
        "Content-Length: -1",
        "Content-Length: 4\r\nContent-Length: 5",
        "No colon",
        "\x00: x",
    ),
)
BODIES = (
    b"",
    b"{}",
    b"\0" * 4096,
    b'4\r\n{"a"\r\n0\r\n\r\n',
    b"[" * 100_000,
    b"ffffffff\r\n",
    random.Random(1).randbytes(3000),
)


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    """Where uvicorn serves the gateway, as vLLM's server does."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(GATEWAY, log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    yield listening.getsockname()
    server.should_exit = True
    thread.join(30)


def said(address: tuple[str, int], request: bytes) -> int | None:
    """The status of the answer to these bytes; `None` if the connection is closed without one."""
    with socket.create_connection(address, timeout=30) as connection:
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(64)
        except TimeoutError:
            raise
        except OSError:
            return None
    return int(answer.split()[1]) if answer.startswith(b"HTTP/1.") else None


def test_odd_bytes_are_neither_answered_nor_an_error_of_the_server(address: tuple[str, int]) -> None:
    draw, statuses = random.Random(14), set()
    requests = [(method, target, "", b"") for method in ("GET", "POST", "OPTIONS") for target in TARGETS]
    requests += [("GET", "/v1/models", header, body) for header in HEADERS for body in BODIES]
    requests += [
        (draw.choice(METHODS), draw.choice(TARGETS), draw.choice(HEADERS), draw.choice(BODIES)) for _ in range(300)
    ]
    SERVED.taken()
    for method, target, header, body in requests:
        lines = [f"{method} {target} HTTP/1.1", "Host: engine", "Connection: close"]
        lines += [header] if header else []
        if body and "Length" not in header and "Transfer" not in header:
            lines.append(f"Content-Length: {len(body)}" if draw.random() < 0.5 else "Transfer-Encoding: chunked")
        status = said(address, "\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        # the application may take a request whose connection is gone already
        reached, live = set(SERVED.reached), method in {"GET", "HEAD"} and status == 200
        assert reached <= {"/health"}, (method, target[:80], header[:80], status, reached)
        assert not live or reached
        SERVED.taken()
        assert status is None or status < 500, (method, target[:80], header[:80], status)
        assert live or status is None or status in {*REFUSED, 400, 403}, (method, target[:80], header[:80], status)
        statuses.add(status)
    assert {200, 401, 400} <= statuses
    # it still serves
    assert said(address, b"GET /health HTTP/1.1\r\nHost: engine\r\n\r\n") == 200
    request = f"GET /v1/models HTTP/1.1\r\nHost: engine\r\nAuthorization: Bearer {KEY}\r\n\r\n"
    deadline = time.monotonic() + 30
    while (status := said(address, request.encode())) is None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert status == 200
    SERVED.taken()
