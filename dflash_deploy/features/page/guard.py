"""Who may use the page: the one browser that exchanged the token of the printed address for a cookie.

Each request must name this machine as its host, so that a domain that resolves to 127.0.0.1 reads nothing (DNS
rebinding). What another page sends is refused by its origin, also on a WebSocket, where cookies have no SameSite. A
browser has the address among its arguments, which `ps` shows to all users: the token is for this user only.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from secrets import compare_digest, token_urlsafe
from typing import Any
from urllib.parse import parse_qs

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

LARGEST_BODY = 21 * 2**20  # bytes of a request: one picture, and the form around it
READS = frozenset({"GET", "HEAD"})

POLICY_VIOLATION = 1008  # the code that closes a refused WebSocket (RFC 6455, 7.4.1)

# Of each answer.
HEADERS = {
    # the page is built by scripts in it, as Vue compiles its templates; nothing comes from another host or goes there,
    # so that an answer cannot send the conversation away as the address of a picture
    "content-security-policy": "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; object-src 'none'; "
    "base-uri 'self'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}

# the browser asks again by itself, from this origin: after a redirect from elsewhere it would not send the cookie
ENTERED = '<!doctype html><html lang="en"><title>dflash-deploy</title><meta http-equiv="refresh" content="0;url=/">'

# Linux's tables of connections, with the user ID of each socket (proc_pid_net(5)).
CONNECTIONS = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))

OTHER_USER = "This address belongs to another user of this machine."

USED = "This address was used or is wrong. Run `dflash-deploy open` again, and open the address that it prints."


class Guard:
    """Passes on what comes from the browser that entered, and answers everything else itself.

    `app` has this name because NiceGUI looks for its application behind others by it.
    """

    def __init__(self, app: Application, port: int) -> None:
        self.app = app
        self._port = port
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        # browsers send cookies to all ports of a host: pages of two deployments have names of their own
        self._cookie = f"dflash_page_{port}"
        self._session = token_urlsafe(32)
        self._token: str | None = token_urlsafe(32)
        self.path = f"/?token={self._token}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        entering = scope["type"] == "http" and "token" in parse_qs(scope["query_string"].decode("latin-1"))
        refused = self._foreign(scope, headers)
        if refused is None and entering and not self._knows(headers):
            await self._enter(scope, send)
            return
        refused = refused or (None if self._knows(headers) else (HTTPStatus.FORBIDDEN, USED))
        if refused is None:
            await self.app(scope, receive, _with_headers(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        else:
            await _answer(send, *refused)

    def _foreign(self, scope: Scope, headers: dict[str, str]) -> tuple[HTTPStatus, str] | None:
        """Why a request is not of this page; `None` if it is."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if host not in self._hosts:
            return HTTPStatus.MISDIRECTED_REQUEST, "this page is at 127.0.0.1 only"
        reads = scope["type"] == "http" and scope["method"] in READS
        if origin != f"http://{host}" and not (reads and origin is None):
            return HTTPStatus.FORBIDDEN, "the request comes from another page"
        if reads:
            return None
        if "transfer-encoding" in headers:
            return HTTPStatus.LENGTH_REQUIRED, "a request needs its length"
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > len(str(LARGEST_BODY)) or int(length) > LARGEST_BODY:
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request has at most {LARGEST_BODY} bytes"
        return None

    def _knows(self, headers: dict[str, str]) -> bool:
        try:
            sent = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return False
        return sent is not None and compare_digest(sent.value.encode(), self._session.encode())

    async def _enter(self, scope: Scope, send: Send) -> None:
        """Exchange the token for the cookie, once."""
        (sent, *_) = parse_qs(scope["query_string"].decode("latin-1"))["token"]
        # a peer that has left has no address
        if scope["client"] is None or is_of_another_user(scope["client"], self._port):
            await _answer(send, HTTPStatus.FORBIDDEN, OTHER_USER)
            return
        if self._token is None or scope["method"] != "GET" or not compare_digest(sent.encode(), self._token.encode()):
            await _answer(send, HTTPStatus.FORBIDDEN, USED)
            return
        self._token = None
        cookie = f"{self._cookie}={self._session}; Path=/; HttpOnly; SameSite=Strict"
        await _answer(send, HTTPStatus.OK, ENTERED, {"set-cookie": cookie, "content-type": "text/html"})


def is_of_another_user(client: tuple[str, int], port: int) -> bool:
    """Whether a connection from an IPv4 address and port to `port` is another user's; `False` if nothing says so.

    Root's is not, since root reads everything; nor is one of the user who called sudo, whose browser or tunnel it is.
    """
    own = os.getuid()
    if own == 0:
        return False
    host = int.from_bytes(socket.inet_aton(client[0]), sys.byteorder)
    ends = (f"{host:08X}:{client[1]:04X}", f":{port:04X}")
    for table in CONNECTIONS:
        with suppress(OSError):
            for line in table.read_text(encoding="ascii").splitlines():
                _, local, remote, *rest = line.split()
                if local.endswith(ends[0]) and remote.endswith(ends[1]):
                    return rest[4] not in {"0", str(own), os.environ.get("SUDO_UID")}
    return False


async def _answer(send: Send, status: HTTPStatus, text: str, more: dict[str, str] | None = None) -> None:
    headers = {"content-type": "text/plain; charset=utf-8", "cache-control": "no-store"} | (more or {})
    send = _with_headers(send)
    await send({"type": "http.response.start", "status": status.value, "headers": _encoded(headers)})
    await send({"type": "http.response.body", "body": text.encode()})


def _with_headers(send: Send) -> Send:
    async def sends(message: Scope) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *_encoded(HEADERS)]}
        await send(message)

    return sends


def _encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]
