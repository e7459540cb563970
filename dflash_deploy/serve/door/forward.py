"""An ASGI application that passes requests on to an engine behind a Unix socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager
from functools import partial

from aiohttp import (
    ClientError,
    ClientPayloadError,
    ClientRequest,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    StreamReader,
    UnixConnector,
)
from aiohttp.client_proto import ResponseHandler
from aiohttp.tracing import Trace
from yarl import URL

from dflash_deploy.serve.door.listener import Unfinished
from dflash_deploy.serve.gateway.asgi import Receive, Scope, Send, answer_error

# Headers, in lower case, that belong to one of the two connections.
NOT_PASSED_ON = frozenset(
    {
        # of one connection only (RFC 9110, section 7.6.1)
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
        # answered by the door, and the engine's own; the engine's `server` may name versions
        *("expect", "authorization", "host", "server"),
    }
)

# Headers that aiohttp's client would add to a request without them.
_AUTOMATIC = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


# Seconds between two tries to connect to an engine whose queue of connections is full: llama.cpp's holds five.
QUEUE_FULL = 0.01


class _Connector(UnixConnector):
    """Waits for a place in the engine's queue of connections.

    connect(2) returns EAGAIN for a Unix socket whose queue is full, which asyncio takes for a connection in progress
    (selector_events.py of 3.11 to 3.14): the request fails later, on a socket that is not connected.
    """

    async def _create_connection(
        self, req: ClientRequest, traces: list[Trace], timeout: ClientTimeout
    ) -> ResponseHandler:
        _, made = await self._loop.create_unix_connection(self._factory, sock=await _connected(self.path))
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
            async with self._request(scope, receive) as response:
                started = True
                await pass_back(response, send)
        except (ClientError, asyncio.IncompleteReadError, OSError) as problem:
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


def _passed_on(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
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


async def pass_back(response: ClientResponse, send: Send) -> None:
    """Send an answer as it comes. While `send` waits for the client, the engine's connection is read no further.

    Raises ClientError if the answer ends early, and what `send` raises.
    """
    headers = _passed_on(response.raw_headers)
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    protocol = response.connection.protocol if response.connection else None
    if protocol is not None and (closed := protocol.closed):
        closed.add_done_callback(partial(_end, response.content))
    async for chunk in response.content.iter_any():
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _end(content: StreamReader, closed: asyncio.Future[None]) -> None:
    """End an answer with its connection. aiohttp 3.14 does not if chunks are malformed, or the session is closed."""
    problem = closed.exception() or ConnectionResetError()
    if not content.is_eof() and content.exception() is None:
        content.set_exception(ClientPayloadError("the connection to the engine has ended"), problem)
