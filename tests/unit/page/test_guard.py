"""The guard of the page, asked without a socket: who is let in, once, and who is not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from dflash_deploy.features.page.guard import LARGEST_BODY, Guard, Receive, Scope, Send

PORT = 4321
HOST = f"127.0.0.1:{PORT}"
ORIGIN = f"http://{HOST}"
CLIENT = ("127.0.0.1", 0xD431)


async def inner(scope: Scope, receive: Receive, send: Send) -> None:
    """The application behind the guard."""
    await send({"type": "http.response.start", "status": 299, "headers": []})


async def nothing() -> Scope:
    """No request of these has a body."""
    return {}


def asked(guard: Guard, path: str = "/", kind: str = "http", method: str = "GET", **headers: str) -> dict[str, Any]:
    """The first message of the answer."""
    sent: list[Any] = []

    async def send(message: Scope) -> None:
        sent.append(message)

    named = {"host": HOST} | {name.replace("_", "-"): value for name, value in headers.items()}
    scope = {
        "type": kind,
        "method": method,
        "client": CLIENT,
        "query_string": path.partition("?")[2].encode(),
        "headers": [(name.encode(), value.encode()) for name, value in named.items()],
    }
    with pytest.raises(StopIteration):
        guard(scope, nothing, send).send(None)
    first: dict[str, Any] = sent[0]
    return first


def header(answer: dict[str, Any], name: str) -> str:
    return next((value.decode() for key, value in answer["headers"] if key.decode() == name), "")


@pytest.fixture
def guard() -> Guard:
    return Guard(inner, PORT)


@pytest.fixture
def cookie(guard: Guard) -> str:
    return header(asked(guard, guard.path), "set-cookie").partition(";")[0]


def test_the_token_gives_the_cookie_once(guard: Guard) -> None:
    first = asked(guard, guard.path)
    assert first["status"] == 200
    assert header(first, "set-cookie").endswith("; Path=/; HttpOnly; SameSite=Strict")
    again = asked(guard, guard.path)
    assert (again["status"], header(again, "set-cookie")) == (403, "")


HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
MAPPED = "0000000000000000FFFF0000"  # what an IPv6 socket has before an IPv4 address


@pytest.mark.skipif(sys.byteorder == "big", reason="the table is one of a little-endian machine")
@pytest.mark.parametrize("before", ["", MAPPED])
@pytest.mark.parametrize(
    ("uid", "status"), [(1000, 200), (1001, 403), (0, 200), (1002, 200)], ids=["own", "another", "root", "sudo"]
)
def test_the_token_is_for_this_user(
    before: str, uid: int, status: int, guard: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = "01 00000000:00000000 00:00000000 00000000"
    ends = ("0100007F:D431", "0100007F:10E1")
    others = f"   1: {before}0200007F:D431 {before}{ends[1]} {rest} 1000        0 2 1\n"
    own = f"   2: {before}{ends[0]} {before}{ends[1]} {rest} {uid:5}        0 3 1\n"
    table = tmp_path / "tcp"
    table.write_text(HEADER + others + own)
    monkeypatch.setattr("dflash_deploy.features.page.guard.CONNECTIONS", (tmp_path / "none", table))
    monkeypatch.setattr("os.getuid", lambda: 1000)
    monkeypatch.setenv("SUDO_UID", "1002")
    assert asked(guard, guard.path)["status"] == status
    table.write_text(HEADER)
    assert asked(guard, guard.path)["status"] == (200 if status == 403 else 403), "the token lives on if it was refused"


@pytest.mark.parametrize("path", ["/", "/?token=", "/?token=None", "/?token=%C3%A9", "/?token", "/?other=1"])
def test_nothing_else_gives_it_and_the_token_lives_on(path: str, guard: Guard) -> None:
    assert asked(guard, path)["status"] == 403
    assert asked(guard, guard.path, method="HEAD")["status"] == 403
    assert asked(guard, guard.path, host="evil.example")["status"] == 421
    assert asked(guard, guard.path)["status"] == 200
    assert asked(guard, path)["status"] == 403


def test_the_cookie_opens_the_page_with_its_policy(guard: Guard, cookie: str) -> None:
    answer = asked(guard, cookie=cookie)
    assert answer["status"] == 299
    assert "frame-ancestors 'none'" in header(answer, "content-security-policy")
    assert asked(guard, guard.path, cookie=cookie)["status"] == 299, "the same browser may use the address again"
    assert asked(guard, cookie=cookie[:-1])["status"] == 403
    assert asked(guard, cookie="; ;=\x00")["status"] == 403
    assert asked(Guard(inner, PORT), cookie=cookie)["status"] == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_what_changes_something_comes_from_the_page_itself(method: str, guard: Guard, cookie: str) -> None:
    assert asked(guard, method=method, cookie=cookie, origin=ORIGIN)["status"] == 299
    assert asked(guard, method=method, cookie=cookie)["status"] == 403
    for origin in ("null", "", "http://127.0.0.1", "http://127.0.0.1:43210", f"http://localhost:{PORT}"):
        assert asked(guard, method=method, cookie=cookie, origin=origin)["status"] == 403


def test_a_websocket_needs_origin_and_cookie(guard: Guard, cookie: str) -> None:
    assert "status" in asked(guard, kind="websocket", cookie=cookie, origin=ORIGIN)
    for headers in ({"cookie": cookie}, {"origin": ORIGIN}, {"cookie": cookie, "origin": "http://evil.example"}):
        assert asked(guard, kind="websocket", **headers) == {"type": "websocket.close", "code": 1008}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content_length": str(LARGEST_BODY)}, 299),
        ({"content_length": str(LARGEST_BODY + 1)}, 413),
        ({"content_length": "9" * 400}, 413),
        ({"content_length": "-1"}, 413),
        ({"transfer_encoding": "chunked", "content_length": "1"}, 411),
    ],
)
def test_a_request_has_a_length_within_the_limit(
    headers: dict[str, str], status: int, guard: Guard, cookie: str
) -> None:
    assert asked(guard, method="POST", cookie=cookie, origin=ORIGIN, **headers)["status"] == status
