"""Limits the size of request bodies, with a Content-Length and in chunks, and refuses packed ones."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from dflash_deploy.serve.gateway.asgi import (
    LARGER,
    MIB,
    App,
    Message,
    Receive,
    Scope,
    Send,
    answer_error,
    header_values,
)

REST_SECONDS = 30.0
"""Seconds within which the rest of a refused body is read."""


class BodyLimit:
    """An ASGI application that answers 413 to bodies above `most` bytes, and 415 to packed ones.

    It passes all other requests to `app`. The limit holds for what the engine reads: no engine unpacks bodies.
    """

    def __init__(self, app: App, most: int) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        announced = _announced(scope)
        packed = [one for one in header_values(scope, b"content-encoding") if one.strip().lower() != b"identity"]
        if packed:
            await read_for_proxy(scope, receive, self._most)
            said = "the body is packed (Content-Encoding): send it as it is"
            await answer_error(scope, send, 415, said, "unsupported_encoding")
        elif announced is None:
            await _Counted(scope, receive, send, self._most).run(self._app)
        elif announced > self._most:
            await read_for_proxy(scope, receive, self._most * LARGER)
            await _refuse(scope, send, self._most)
        else:
            # the server reads no more than the announced length
            await self._app(scope, receive, send)


class _Counted:
    """A request whose body comes in chunks. Above the limit the engine gets a disconnect and the client a 413."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, most: int) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._most = most
        self._read = 0
        self._answered = False
        self._over = False

    async def run(self, app: App) -> None:
        try:
            await app(self._scope, self._count, self._pass_on)
        except Exception:
            # after the disconnect an error of the engine is expected
            if not self._over:
                raise

    async def _count(self) -> Message:
        message = await self._receive() if not self._over else {"type": "http.disconnect"}
        self._read += len(message.get("body", b""))
        if self._read <= self._most or self._over:
            return message
        self._over = True
        if not self._answered:
            if message.get("more_body", False):
                await _read_rest(self._scope, self._receive, self._most * LARGER)
            await _refuse(self._scope, self._send, self._most)
        return {"type": "http.disconnect"}

    async def _pass_on(self, message: Message) -> None:
        if not self._over:
            self._answered = True
            await self._send(message)


def _announced(scope: Scope) -> int | None:
    """The Content-Length in bytes; `None` if it is missing, ambiguous, or overridden by Transfer-Encoding."""
    lengths = header_values(scope, b"content-length")
    if len(lengths) != 1 or not lengths[0].isdigit() or header_values(scope, b"transfer-encoding"):
        return None
    # a longer number is above any limit, and Python refuses to convert thousands of digits
    return int(lengths[0]) if len(lengths[0]) <= 18 else 10**18


async def read_for_proxy(scope: Scope, receive: Receive, most: int) -> None:
    """Read and discard the body of a request that is refused, at most `most` bytes, if a reverse proxy passes it on.

    Proxies pass an early answer on and then reset the connection of a client that is still sending. A request that
    waits for `100 Continue` has sent nothing.
    """
    if scope["type"] != "http":
        return
    if header_values(scope, b"expect") or (_announced(scope) or 0) > most:
        return
    await _read_rest(scope, receive, most)


async def _read_rest(scope: Scope, receive: Receive, most: int) -> None:
    proxied = header_values(scope, b"via") or header_values(scope, b"x-forwarded-for")
    read, more = 0, bool(proxied)
    # a client can write these headers itself, and then send nothing
    with suppress(TimeoutError):
        async with asyncio.timeout(REST_SECONDS):
            while more and read <= most:
                message = await receive()
                read += len(message.get("body", b""))
                more = message.get("more_body", False)


async def _refuse(scope: Scope, send: Send, most: int) -> None:
    # the connection stays open and the rest of the body is discarded: otherwise a client that is still sending would
    # see a connection reset instead of this answer
    said = f"the request body is larger than {most / MIB:g} MiB, the limit of this endpoint"
    await answer_error(scope, send, 413, said, "request_too_large")
