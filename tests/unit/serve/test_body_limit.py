"""The limit of a body: announced or counted in pieces, and an engine that ends before the body does."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_deploy.serve.gateway.asgi import Receive, Scope, Send
from dflash_deploy.serve.gateway.auth import DenyByDefault
from dflash_deploy.serve.gateway.keys import LIVENESS
from tests.support.locked import (
    FIRST,
    KEYS,
    LIMIT,
    Engine,
    Headers,
    bearer,
    lock,
    request,
    status,
    talk,
)


def text(size: int) -> bytes:
    """A body of that size: JSON."""
    return b'"' + b"x" * (size - 2) + b'"' if size > 1 else b"1" * size


def announced(size: int | str) -> Headers:
    return [*bearer(FIRST), (b"content-length", str(size).encode())]


@pytest.mark.parametrize("size", [0, 1, LIMIT])
def test_a_body_up_to_the_limit_passes(size: int) -> None:
    sent = talk(lock(Engine()), request(method="POST", headers=announced(size)), [text(size)])
    assert (status(sent), sent[1]["body"]) == (200, str(size).encode())


@pytest.mark.parametrize("size", [LIMIT + 1, 10**12, "9" * 5000])
def test_a_body_announced_above_the_limit_is_not_read(size: int | str) -> None:
    engine = Engine()
    sent = talk(lock(engine), request(method="POST", headers=announced(size)))
    assert status(sent) == 413
    assert json.loads(sent[1]["body"])["error"]["code"] == "request_too_large"
    assert not engine.seen


@pytest.mark.parametrize(
    "encodings", [[b"gzip"], [b"deflate"], [b"br"], [b"identity, gzip"], [b"GZIP "], [b"identity", b"zstd"], [b""]]
)
def test_a_packed_body_is_refused_before_the_engine_sees_it_and_only_to_those_with_a_key(
    encodings: list[bytes],
) -> None:
    headers = [(b"content-encoding", one) for one in encodings]
    engine = Engine()
    sent = talk(lock(engine), request(method="POST", headers=[*bearer(FIRST), *headers]), [b"packed"])
    assert status(sent) == 415
    assert json.loads(sent[1]["body"])["error"]["code"] == "unsupported_encoding"
    assert status(talk(lock(engine), request(method="POST", headers=headers), [b"packed"])) == 401
    assert not engine.seen


def test_an_identity_body_passes() -> None:
    headers = [*bearer(FIRST), (b"content-encoding", b" Identity ")]
    assert status(talk(lock(Engine()), request(method="POST", headers=headers), [b"{}"])) == 200


@given(
    st.lists(st.integers(0, LIMIT), max_size=5),
    st.sampled_from(
        [
            [],
            [(b"transfer-encoding", b"chunked")],
            [(b"transfer-encoding", b"chunked"), (b"content-length", b"1")],
            [(b"content-length", b"1"), (b"content-length", b"1")],
            [(b"content-length", b"-1")],
            [(b"content-length", "²".encode("latin-1"))],
        ]
    ),
)
def test_a_body_in_pieces_is_counted(sizes: list[int], headers: Headers) -> None:
    scope = request(method="POST", headers=[*bearer(FIRST), *headers])
    sent = talk(lock(Engine()), scope, [b"1" * size for size in sizes])
    assert status(sent) == (200 if sum(sizes) <= LIMIT else 413)


def test_an_engine_that_answers_a_client_that_left_is_not_heard() -> None:
    async def answers_all_the_same(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        assert (await receive())["type"] == "http.disconnect"
        await send({"type": "http.response.start", "status": 400, "headers": []})
        await send({"type": "http.response.body", "body": b"the client left"})

    app = DenyByDefault(answers_all_the_same, KEYS)
    sent = talk(app, request(method="POST", headers=bearer(FIRST)), [b"x" * LIMIT, b"x", b"x"])
    assert status(sent) == 413


def test_an_engine_that_fails_by_itself_still_fails() -> None:
    async def fails(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("the engine is dead")

    with pytest.raises(RuntimeError, match="the engine is dead"):
        talk(DenyByDefault(fails, KEYS), request(headers=bearer(FIRST)))


def test_without_the_key_a_large_body_is_a_matter_of_the_key() -> None:
    assert status(talk(lock(Engine()), request(method="POST", headers=announced(10**12)[1:]))) == 401
    # nor is it read where the path is open
    large = [(b"content-length", str(10**12).encode())]
    assert status(talk(lock(Engine()), request(LIVENESS, headers=large))) == 413
