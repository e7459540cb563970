"""A request that a proxy passes on is read to its end before it is refused; any other is refused at once."""

import asyncio

import pytest

from dflash_deploy.serve.gateway.asgi import LARGER, Message, Receive, Scope, Send
from dflash_deploy.serve.gateway.auth import DenyByDefault

KEY, SCRAPER = "key-of-the-owner-0123", "key-of-the-scraper-01"
KEYS = {"VLLM_API_KEY": KEY, "DFLASH_API_KEYS": f"scraper:{SCRAPER}:metrics", "MAX_BODY_MIB": "1"}
PIECE = b"x" * (1 << 18)
LIMIT = 4  # pieces in a body of MAX_BODY_MIB
VIA = (b"via", b"2.0 Caddy")
FORWARDED = (b"x-forwarded-for", b"203.0.113.7")


async def engine(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads a body, and must not get to its end."""
    while (message := await receive())["type"] != "http.disconnect":
        assert message["more_body"]
    raise ConnectionError("the client left")


def refused(pieces: int, *headers: tuple[bytes, bytes], key: str = KEY, announced: bool = True) -> tuple[int, int]:
    """The status of the answer, and how many pieces of the body were read when it began."""
    left = pieces
    seen: list[tuple[int, int]] = []

    async def receive() -> Message:
        nonlocal left
        assert left > 0, "a body is not read beyond its end"
        left -= 1
        return {"type": "http.request", "body": PIECE, "more_body": left > 0}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            seen.append((message["status"], pieces - left))

    length = [(b"content-length", str(pieces * len(PIECE)).encode())] if announced else []
    sent = [(b"authorization", f"Bearer {key}".encode()), *length, *headers]
    scope: Scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": sent}
    asyncio.run(_run(scope, receive, send))
    (only,) = seen
    return only


async def _run(scope: Scope, receive: Receive, send: Send) -> None:
    await DenyByDefault(engine, KEYS)(scope, receive, send)


@pytest.mark.parametrize("header", [VIA, FORWARDED])
@pytest.mark.parametrize("announced", [True, False])
def test_a_proxys_request_is_read_to_its_end(header: tuple[bytes, bytes], announced: bool) -> None:
    assert refused(20, header, announced=announced) == (413, 20)
    assert refused(LIMIT + 1, header, announced=announced) == (413, LIMIT + 1)


def test_any_other_is_refused_at_once() -> None:
    assert refused(20) == (413, 0)
    assert refused(20, announced=False) == (413, LIMIT + 1)
    assert refused(3, key="another-key-0123456789") == (401, 0)


@pytest.mark.parametrize(("key", "status"), [("another-key-0123456789", 401), (SCRAPER, 403)])
def test_a_wrong_key_is_refused_after_a_body_within_the_limit(key: str, status: int) -> None:
    assert refused(LIMIT, VIA, key=key) == (status, LIMIT)
    assert refused(LIMIT * 2, VIA, key=key) == (status, 0)
    assert refused(LIMIT * 2, VIA, key=key, announced=False) == (status, LIMIT + 1)


def test_one_that_waits_for_100_continue_has_sent_nothing() -> None:
    assert refused(20, VIA, (b"expect", b"100-continue")) == (413, 0)


def test_an_endless_body_is_not_read_for_ever() -> None:
    endless = LIMIT * LARGER * 4
    assert refused(endless, VIA) == (413, 0)
    status, read = refused(endless, VIA, announced=False)
    assert (status, read <= LIMIT * (LARGER + 1) + 2) == (413, True)
