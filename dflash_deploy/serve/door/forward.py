"""An ASGI application that passes requests on to an engine behind a Unix socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import coroutine
from typing import Any

from aiohttp import (
    ClientConnectionError,
    ClientError,
    ClientRequest,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    UnixConnector,
)
from aiohttp.client_proto import ResponseHandler
from aiohttp.tracing import Trace
from yarl import URL

from dflash_deploy.serve.door.listener import Unfinished
from dflash_deploy.serve.gateway.asgi import Receive, Scope, Send, answer_error

Headers = list[tuple[bytes, bytes]]

NOT_PASSED_ON = frozenset(
    {
        # of one connection only (RFC 9110, section 7.6.1)
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
        # answered by the door, and the engine's own; the engine's `server` may name versions
        *("expect", "authorization", "host", "server"),
    }
)
"""Headers, in lower case, that belong to one of the two connections."""

_AUTOMATIC = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""Headers that aiohttp's client would add to a request without them."""


QUEUE_FULL = 0.01
"""Seconds between two tries to connect to an engine whose queue of connections is full: llama.cpp's holds five."""


class EngineConnection(ResponseHandler):
    """A connection to the engine, which calls `arrived` after each read, and at its end.

    `holds`: it reads no more until what it has read is taken.
    """

    arrived: Callable[[], None] | None = None
    holds = False

    def pause_reading(self) -> None:
        """More has been read than may wait."""
        super().pause_reading()
        self.holds = True

    def resume_reading(self, *arguments: Any, **named: Any) -> None:
        """What was read has been taken; aiohttp calls it each time."""
        if self.holds:
            self.holds = False
            super().resume_reading(*arguments, **named)

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer have been read; without any, aiohttp parses those that it holds."""
        super().data_received(data)
        if data and self.arrived is not None:
            self.arrived()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection has ended."""
        super().connection_lost(exc)
        if self.arrived is not None:
            self.arrived()


class _Connector(UnixConnector):
    """Waits for a place in the engine's queue of connections.

    connect(2) returns EAGAIN for a Unix socket whose queue is full, which asyncio takes for a connection in progress
    (selector_events.py of 3.11 to 3.14): the request fails later, on a socket that is not connected.
    """

    async def _create_connection(
        self, req: ClientRequest, traces: list[Trace], timeout: ClientTimeout
    ) -> ResponseHandler:
        try:
            _, made = await self._loop.create_unix_connection(
                lambda: EngineConnection(self._loop), sock=await _connected(self.path)
            )
        except OSError as problem:
            raise ClientConnectionError(str(problem)) from problem
        return made


async def _connected(path: str) -> socket.socket:
    """A socket that is connected to the engine."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.setblocking(False)
    try:
        while True:
            try:
                made.connect(path)
            except BlockingIOError:
                await asyncio.sleep(QUEUE_FULL)
            else:
                return made
    except BaseException:
        made.close()
        raise


class Forward:
    """Sends requests to the engine, and its answers back chunk by chunk, as they come.

    The client's key stays here: the engine gets its own. If the client disconnects, the connection to the engine is
    closed too, which cancels the request there.
    """

    def __init__(self, place: str, key: str) -> None:
        self._authorization = f"Bearer {key}"
        self._session = ClientSession(
            # a new connection for each request: one that the engine has just closed would fail a request
            connector=_Connector(place, limit=0, force_close=True),
            timeout=ClientTimeout(total=None),
            auto_decompress=False,
            skip_auto_headers=_AUTOMATIC,
        )

    async def close(self) -> None:
        """Close all connections to the engine."""
        await self._session.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request. An engine that does not listen yet, or not any more, gives 503."""
        started = False
        try:
            if self._session.closed:
                # the engine has ended, and the door closes
                raise ConnectionError
            async with self._request(scope, receive) as response:
                started = True
                await _answer(response, send)
        except (ClientError, asyncio.IncompleteReadError, ConnectionError) as problem:
            if started:
                raise Unfinished from problem
            said = "the engine does not answer: it is starting, or has stopped"
            await answer_error(scope, send, 503, said, "engine_unavailable", [(b"retry-after", b"5")])

    def _request(self, scope: Scope, receive: Receive) -> AbstractAsyncContextManager[ClientResponse]:
        query = scope["query_string"].decode("latin-1")
        target = scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in _passed_on(scope["headers"])]
        has_body = any(name in {b"content-length", b"transfer-encoding"} for name, _ in scope["headers"])
        return self._session.request(
            scope["method"],
            URL(f"http://engine{target}", encoded=True),
            headers=[*headers, ("Authorization", self._authorization)],
            data=_body(receive) if has_body else None,
            allow_redirects=False,
        )


def _passed_on(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    return [(name, value) for name, value in headers if name.decode("latin-1").lower() not in NOT_PASSED_ON]


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionResetError("the client disconnected while it sent the body")
        if message["body"]:
            yield message["body"]
        more = message.get("more_body", False)


async def _answer(response: ClientResponse, send: Send) -> None:
    headers = _passed_on(response.raw_headers)
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await Relay(response, send).run()
    await send({"type": "http.response.body", "body": b"", "more_body": False})


class Relay:
    """Sends the body of an answer chunk by chunk, as it comes.

    While the task of the request waits for the engine, each chunk is sent from the callback that reads it: to wake the
    task takes a second turn of the event loop. If a send has to wait for the client, the task waits, and continues.
    """

    def __init__(self, response: ClientResponse, send: Send) -> None:
        self._content = response.content
        # without one, the answer is complete
        connection = response.connection.protocol if response.connection is not None else None
        self._connection = connection if isinstance(connection, EngineConnection) else None
        self._send = send
        self._waits: asyncio.Future[Awaitable[None] | None] | None = None

    async def run(self) -> None:
        """Return at the end of the body. Raises what the connection to the engine or to the client raises."""
        if self._connection is not None:
            self._connection.arrived = self._arrived
        try:
            while not self._content.at_eof():
                if chunk := self._content.read_nowait():
                    await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
                elif (begun := await self._left()) is not None:
                    await begun
        finally:
            if self._connection is not None:
                self._connection.arrived = None

    async def _left(self) -> Awaitable[None] | None:
        """Wait until the callback leaves something to the task; returns the send that it has begun."""
        if self._connection is None or not self._connection.connected:
            raise ConnectionResetError
        self._waits = asyncio.get_running_loop().create_future()
        try:
            return await self._waits
        finally:
            self._waits = None

    def _arrived(self) -> None:
        if (waits := self._waits) is None or waits.done() or self._connection is None:
            return
        begun, connection = None, self._connection
        try:
            if not connection.holds and (chunk := self._content.read_nowait()):
                begun = _begun(self._send({"type": "http.response.body", "body": chunk, "more_body": True}))
        except Exception as problem:
            # the task of the request raises it
            waits.set_exception(problem)
            return
        if begun is not None or connection.holds or self._content.at_eof() or not connection.connected:
            waits.set_result(begun)


def _begun(call: Awaitable[None]) -> Awaitable[None] | None:
    """Begin a call; returns the rest of it if it has to wait for something."""
    steps = call.__await__()
    try:
        awaited = next(steps)
    except StopIteration:
        return None
    return _rest(steps, awaited)


@coroutine
def _rest(steps: Generator[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    """Continue a call that waits for `awaited`."""
    while True:
        try:
            yield awaited
        except BaseException as problem:
            proceed = partial(steps.throw, problem)
        else:
            proceed = partial(next, steps)
        try:
            awaited = proceed()
        except StopIteration:
            return
