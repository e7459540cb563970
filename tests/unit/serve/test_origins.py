"""A browser reads answers only for pages of allowed origins, whatever the engine says."""

from dataclasses import dataclass, field

import pytest

from dflash_deploy.serve.gateway.asgi import Message, Receive, Scope, Send
from dflash_deploy.serve.gateway.auth import DenyByDefault
from dflash_deploy.serve.refusal import Refused
from tests.support.locked import FIRST, KEYS, Headers, bearer, request, talk

CHAT = "https://chat.example"


@dataclass
class Generous:
    """An engine that allows each origin that asks, as llama.cpp does."""

    seen: list[Scope] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.seen.append(scope)
        origin = dict(scope["headers"]).get(b"origin", b"*")
        headers = [(b"Access-Control-Allow-Origin", origin), (b"Access-Control-Allow-Credentials", b"true")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


def answered(headers: Headers, method: str = "GET", allowed: str = "") -> tuple[int, Headers, bool]:
    """The status, the headers about origins, and whether the engine saw the request."""
    engine = Generous()
    start: Message = talk(
        DenyByDefault(engine, KEYS | {"ALLOWED_ORIGINS": allowed}), request("/v1/models", method, headers)
    )[0]
    told = sorted((name.lower(), value) for name, value in start["headers"])
    about = [(name, value) for name, value in told if name.startswith(b"access-control-") or name == b"vary"]
    return start["status"], about, bool(engine.seen)


def from_page(origin: str, *headers: tuple[bytes, bytes]) -> Headers:
    return [(b"origin", origin.encode()), *headers]


PREFLIGHT = ((b"access-control-request-method", b"POST"), (b"access-control-request-headers", b"authorization"))
READABLE = [(b"access-control-allow-origin", CHAT.encode()), (b"vary", b"Origin")]


@pytest.mark.parametrize("allowed", ["", "https://other.example"])
def test_no_page_reads_an_answer_unless_its_origin_is_named(allowed: str) -> None:
    assert answered(from_page(CHAT, *bearer(FIRST)), allowed=allowed) == (200, [], True)
    assert answered(from_page(CHAT, *PREFLIGHT), "OPTIONS", allowed) == (401, [], False)


@pytest.mark.parametrize("allowed", [CHAT, f"http://a.example:8080, {CHAT.upper()}", "*"])
def test_a_page_of_a_named_origin_reads_answers_and_refusals(allowed: str) -> None:
    assert answered(from_page(CHAT, *bearer(FIRST)), allowed=allowed) == (200, READABLE, True)
    assert answered(from_page(CHAT), allowed=allowed) == (401, READABLE, False)


def test_the_browsers_question_is_answered_without_a_key_and_reaches_no_route() -> None:
    status, told, seen = answered(from_page(CHAT, *PREFLIGHT), "OPTIONS", CHAT)
    assert (status, seen) == (204, False)
    assert dict(told) == {
        b"access-control-allow-origin": CHAT.encode(),
        b"access-control-allow-methods": b"GET, POST",
        b"access-control-allow-headers": b"authorization",
        b"access-control-max-age": b"600",
        b"vary": b"Origin",
    }
    private = (b"access-control-request-private-network", b"true")
    assert (b"access-control-allow-private-network", b"true") in answered(
        from_page(CHAT, *PREFLIGHT, private), "OPTIONS", CHAT
    )[1]


@pytest.mark.parametrize(
    "headers",
    [
        from_page(CHAT),
        from_page("https://other.example", *PREFLIGHT),
        from_page("https://chat.example.evil.example", *PREFLIGHT),
        from_page("null", *PREFLIGHT),
        [*from_page(CHAT), *from_page(CHAT, *PREFLIGHT)],
        [*PREFLIGHT],
    ],
)
def test_any_other_question_needs_a_key(headers: Headers) -> None:
    assert answered(headers, "OPTIONS", CHAT)[::2] == (401, False)


def test_what_a_client_asks_for_is_repeated_only_if_it_is_names_of_headers() -> None:
    odd = ((b"access-control-request-method", b"POST"), (b"access-control-request-headers", b"a\r\nset-cookie: x"))
    told = dict(answered(from_page(CHAT, *odd), "OPTIONS", CHAT)[1])
    assert b"access-control-allow-headers" not in told


@pytest.mark.parametrize(
    "value", ["chat.example", "https://chat.example/", "https://a b", "ftp://a", "https://*.a.example"]
)
def test_an_origin_that_no_browser_sends_is_refused(value: str) -> None:
    with pytest.raises(Refused, match="is not a valid origin"):
        DenyByDefault(Generous(), KEYS | {"ALLOWED_ORIGINS": value})
