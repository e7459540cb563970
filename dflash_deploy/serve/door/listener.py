"""An ASGI application behind aiohttp's HTTP server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, cast
from urllib.parse import unquote

from aiohttp import web

from dflash_deploy.serve.gateway import IDLE_SECONDS
from dflash_deploy.serve.gateway.asgi import App, Message, Scope, error_body
from dflash_deploy.serve.gateway.connections import WaitingConnections

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

# Sent before the body is read, to clients that wait for it; a refused request never gets it.
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

SERVER = "dflash-deploy"  # the header `Server`: aiohttp's own names versions


class Unfinished(ConnectionError):
    """Raised by an application whose answer ends early: the connection is closed, so that the client notices."""


def scope_of(method: str, target: str, headers: Iterable[tuple[bytes, bytes]]) -> Scope:
    """The ASGI scope of a request. `target` is the path with its query, as the client sent it.

    The path is only %-decoded: `..` and doubled slashes stay, so that no other spelling of a path is the open one.
    """
    path, _, query = target.partition("?")
    return {
        "type": "http",
        "method": method,
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.lower(), value) for name, value in headers],
    }


def handler_of(app: App, waiting: WaitingConnections) -> Handler:
    """A handler for `aiohttp.web.Server` that calls `app` for each request."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        exchange = _Exchange(request)
        waiting.began(request.protocol)
        try:
            scope = scope_of(request.method, request.raw_path, request.raw_headers)
            await app(scope, exchange.receive, exchange.send)
        except Unfinished:
            if request.transport is not None:
                request.transport.abort()
        finally:
            waiting.ended(request.protocol)
        return exchange.response

    return handle


def server_of(app: App, waiting: WaitingConnections | None = None) -> web.Server:
    """The HTTP server with an application behind it. Bodies reach the application as they were sent, never unpacked."""
    waiting = waiting or WaitingConnections()
    handler = handler_of(app, waiting)
    return _Server(waiting, handler, access_log=None, handler_cancellation=True, auto_decompress=False)


class _Server(web.Server):
    def __init__(self, waiting: WaitingConnections, handler: Handler, **settings: Any) -> None:
        super().__init__(handler, keepalive_timeout=IDLE_SECONDS, **settings)
        self.waiting = waiting

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


class _Connection(web.RequestHandler):
    def __init__(self, server: _Server, **settings: Any) -> None:
        super().__init__(server, **settings)
        self._waiting = server.waiting

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._waiting.opened(self, cast(asyncio.Transport, transport))

    def connection_lost(self, problem: BaseException | None) -> None:
        self._waiting.closed(self)
        super().connection_lost(problem)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that failed. aiohttp would quote and log one that is not HTTP, which may hold a key."""
        if status >= 500:
            self.log_exception("Error handling request from %s", request.remote, exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun")
        said = "the request is not valid HTTP" if status < 500 else "the endpoint failed to answer"
        answer = web.Response(status=status, body=error_body(said, "invalid_request"), content_type="application/json")
        answer.headers["Server"] = SERVER
        answer.force_close()
        return answer


class _Exchange:
    """One request and its answer, as the two functions of ASGI."""

    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request
        self._awaits_continue = request.headers.get("Expect", "").lower() == "100-continue"
        self._read = False
        self._in_chunks = False
        self.response = web.StreamResponse(status=500)

    async def receive(self) -> Message:
        """The next chunk of the request's body."""
        if self._read:
            return {"type": "http.disconnect"}
        if self._awaits_continue:
            self._awaits_continue = False
            await self._request.writer.write(CONTINUE)
            # aiohttp counts these bytes as the beginning of the answer
            self._request.writer.output_size = 0
        body = await self._request.content.readany()
        self._read = self._request.content.at_eof()
        return {"type": "http.request", "body": body, "more_body": not self._read}

    async def send(self, message: Message) -> None:
        """The head of the answer, or the next chunk of its body."""
        if message["type"] == "http.response.start":
            self.response = web.StreamResponse(status=message["status"])
            self.response.headers["Server"] = SERVER
            for name, value in message["headers"]:
                self.response.headers.add(name.decode("latin-1"), value.decode("latin-1"))
            await self.response.prepare(self._request)
            self._in_chunks = self.response.headers.get("Transfer-Encoding") == "chunked"
            return
        if body := message["body"]:
            await self._write(body)
        if not message.get("more_body", False):
            await self.response.write_eof()

    async def _write(self, body: bytes) -> None:
        """Send a part of the body; wait before it while the client does not read."""
        protocol = self._request.protocol
        if protocol.writing_paused:
            await self._request.writer.drain()
        transport = protocol.transport
        if self._in_chunks and transport is not None and not transport.is_closing():
            # aiohttp's writer takes four calls for it
            transport.write(b"%x\r\n%b\r\n" % (len(body), body))
        else:
            await self._request.writer.write(body)
