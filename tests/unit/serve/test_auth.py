"""The lock lets in who has a key, answers /health, and opens for nothing else."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_deploy.serve.gateway.asgi import Scope
from dflash_deploy.serve.gateway.auth import Refusals
from dflash_deploy.serve.gateway.keys import LIVENESS
from dflash_deploy.serve.refusal import Refused
from tests.support.locked import (
    FIRST,
    SECOND,
    THIRD,
    Engine,
    Headers,
    bearer,
    denied,
    lock,
    request,
    talk,
)


def x_api_key(key: str) -> Headers:
    return [(b"x-api-key", key.encode())]


def azure(key: str) -> Headers:
    return [(b"api-key", key.encode())]


@pytest.mark.parametrize("key", [FIRST, SECOND, THIRD])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_each_key_opens(key: str, scheme: str) -> None:
    assert not denied(request(headers=[(b"authorization", f"{scheme} {key}".encode())]))


@pytest.mark.parametrize("key", [FIRST, SECOND, THIRD])
def test_each_key_opens_as_the_clients_of_anthropic_and_azure_send_it(key: str) -> None:
    assert not denied(request(headers=x_api_key(key)))
    assert not denied(request(headers=azure(key)))


@pytest.mark.parametrize(
    "sent",
    [
        *map(bearer, (FIRST, SECOND, THIRD)),
        *map(x_api_key, (FIRST, SECOND, THIRD)),
        azure(SECOND),
        [*azure(SECOND), *bearer(SECOND)],
        [*bearer(SECOND), *x_api_key(SECOND)],
        [*x_api_key(FIRST), *bearer(FIRST)],
    ],
)
def test_vllms_own_lock_gets_the_first_key_in_the_one_header_that_it_knows(sent: Headers) -> None:
    for scope in (request(headers=[(b"accept", b"*/*"), *sent]), websocket([(b"accept", b"*/*"), *sent])):
        engine = Engine()
        talk(lock(engine), scope)
        assert engine.seen[0]["headers"] == [(b"accept", b"*/*"), *bearer(FIRST)]
        # the server's own scope, which it may log, stays as it is
        assert scope["headers"] == [(b"accept", b"*/*"), *sent]


@pytest.mark.parametrize(
    "headers",
    [
        [],
        bearer(""),
        bearer(FIRST + "x"),
        bearer(FIRST[:-1]),
        bearer(f" {FIRST}"),
        bearer(f"{FIRST} "),
        bearer(f"{SECOND},{THIRD}"),
        bearer(f"{FIRST}\0"),
        [(b"authorization", FIRST.encode())],
        [(b"authorization", f"Basic {FIRST}".encode())],
        [(b"authorization", f"Bearer{FIRST}".encode())],
        [(b"authorization", b"Bearer \xff\xfe")],
        [*bearer("wrong"), *bearer(FIRST)],
        [*bearer(FIRST), *bearer("wrong")],
        [*bearer(FIRST), *bearer(FIRST)],
        x_api_key(""),
        x_api_key(FIRST + "x"),
        x_api_key(FIRST[:-1]),
        x_api_key(f" {FIRST}"),
        x_api_key(f"Bearer {FIRST}"),
        x_api_key(f"{SECOND},{THIRD}"),
        [(b"x-api-key", b"\xff\xfe")],
        [*x_api_key(FIRST), *x_api_key(FIRST)],
        [*x_api_key(FIRST), *x_api_key(SECOND)],
        # two headers with different keys: which one counts would be a guess
        [*bearer(FIRST), *x_api_key(SECOND)],
        [*bearer(FIRST), *x_api_key("wrong")],
        [*bearer("wrong"), *x_api_key(FIRST)],
        [*bearer(FIRST), *x_api_key("")],
        [(b"authorization", b"Basic Zm9vOmJhcg=="), *x_api_key(FIRST)],
        [*bearer(FIRST), *bearer(FIRST), *x_api_key(FIRST)],
        [*bearer(FIRST), *x_api_key(FIRST), *x_api_key(FIRST)],
        azure(f"Bearer {FIRST}"),
        [*azure(FIRST), *azure(FIRST)],
        [*azure(FIRST), *x_api_key(SECOND)],
        [*bearer("wrong"), *azure(FIRST)],
        [(b"x_api_key", FIRST.encode())],
    ],
)
def test_what_is_not_one_known_key_opens_nothing(headers: Headers) -> None:
    assert denied(request(headers=headers))
    engine = Engine()
    talk(lock(engine), websocket(headers))
    assert not engine.seen


VALUES = st.binary(max_size=80) | st.sampled_from(
    [form + key.encode() for form in (b"", b"Bearer ", b"bearer  ") for key in (FIRST, SECOND, THIRD)]
)
NAMES = st.sampled_from([b"authorization", b"x-api-key", b"api-key", b"cookie", b"proxy-authorization"])


def key_in(name: bytes, value: bytes) -> str | None:
    """The key that a header carries, as SECURITY.md says it."""
    if name in {b"x-api-key", b"api-key"}:
        return value.decode("latin-1")
    scheme, _, key = value.partition(b" ")
    return key.decode("latin-1") if scheme.lower() == b"bearer" else None


@given(st.lists(st.tuples(NAMES, VALUES), max_size=3))
def test_one_known_key_opens_and_nothing_else(headers: Headers) -> None:
    carriers = [(name, value) for name, value in headers if name in {b"authorization", b"x-api-key", b"api-key"}]
    once = len({name for name, _ in carriers}) == len(carriers)
    keys = {key_in(name, value) for name, value in carriers}
    opens = once and len(keys) == 1 and keys <= {FIRST, SECOND, THIRD}
    assert denied(request(headers=headers)) is not opens


@given(
    st.one_of(
        st.text(),
        # near the open one, as a trick would be
        st.lists(
            st.sampled_from(["health", "/", "//", ".", "..", "%2e", "%2f", ";", "?", "#", " ", "\0", "v1", "HEALTH"])
        ).map("".join),
    ),
    st.sampled_from(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "BREW"]),
    st.sampled_from(["", "/health", "/api"]),
)
def test_no_other_path_or_method_is_open(path: str, method: str, root: str) -> None:
    opened = path == LIVENESS and method in {"GET", "HEAD"}
    assert denied(request(path, method, root_path=root)) is not opened


@pytest.mark.parametrize("path", ["//health", "/health/", "/health/../v1/models", "/Health", "/x/health", "health", ""])
def test_what_looks_like_the_open_path_is_closed(path: str) -> None:
    assert denied(request(path))


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_liveness_is_answered_to_everybody(method: str) -> None:
    assert not denied(request(LIVENESS, method))
    assert not denied(request(LIVENESS, method, bearer("wrong")))


def test_the_answer_has_the_shape_of_openais_errors() -> None:
    start, body = talk(lock(Engine()), request())
    headers = dict(start["headers"])
    assert headers[b"www-authenticate"] == b"Bearer"
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"content-length"] == str(len(body["body"])).encode()
    error = json.loads(body["body"])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == "invalid_api_key"
    assert "`Authorization: Bearer KEY`" in error["message"]
    assert "`x-api-key: KEY`" in error["message"]


def test_head_is_denied_without_a_body() -> None:
    start, body = talk(lock(Engine()), request(method="HEAD"))
    assert start["status"] == 401
    assert body["body"] == b""


PREFLIGHT: Headers = [(b"origin", b"https://a.example"), (b"access-control-request-method", b"POST")]


@pytest.mark.parametrize("headers", [[], PREFLIGHT[:1], PREFLIGHT[1:], PREFLIGHT])
def test_a_browsers_question_is_denied(headers: Headers) -> None:
    assert denied(request(method="OPTIONS", headers=headers))


def websocket(headers: Headers, *extensions: str) -> Scope:
    return {
        "type": "websocket",
        "path": LIVENESS,
        "headers": headers,
        "extensions": {extension: {} for extension in extensions},
    }


def test_a_websocket_needs_the_key_too_even_at_the_open_path() -> None:
    engine = Engine()
    (closed,) = talk(lock(engine), websocket([]))
    assert (closed["type"], closed["code"]) == ("websocket.close", 1008)
    start, body = talk(lock(engine), websocket([], "websocket.http.response"))
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 401)
    assert json.loads(body["body"])["error"]["code"] == "invalid_api_key"
    assert not engine.seen
    talk(lock(engine), websocket(bearer(SECOND)))
    assert engine.seen[0]["headers"] == bearer(FIRST)


def test_the_servers_own_start_passes_and_a_connection_of_another_kind_does_not() -> None:
    engine = Engine()
    talk(lock(engine), {"type": "lifespan"})
    with pytest.raises(ValueError, match="tunnel"):
        talk(lock(engine), {"type": "tunnel", "headers": bearer(FIRST)})
    assert [scope["type"] for scope in engine.seen] == ["lifespan"]


@pytest.mark.parametrize("environment", [{}, {"VLLM_API_KEY": ""}, {"VLLM_API_KEY": FIRST, "DFLASH_API_KEYS": "short"}])
def test_without_sound_keys_there_is_no_server(environment: dict[str, str]) -> None:
    with pytest.raises(Refused):
        lock(Engine(), environment)


def test_requests_without_a_key_have_one_line_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    refusals = Refusals(lambda: now)
    for _ in range(3000):
        refusals.say()
    now += 1
    refusals.say()
    assert re.findall(r"dflash: (\d+) requests without a valid key", capsys.readouterr().out) == ["1", "3000"]
