"""The types of ASGI 3 that a middleware needs, and answers in the format of OpenAI's errors."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

Headers = Iterable[tuple[bytes, bytes]]

MIB = 1 << 20

LARGER = 16
"""A body of up to this many times the limit is read to its end before a proxy's client gets 413."""


class ErrorAnswer(Exception):
    """Raised for a request that the gateway answers itself, with an error."""

    def __init__(self, status: int, message: str, code: str, headers: Headers = ()) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.headers = status, message, code, headers

    async def answer(self, scope: Scope, send: Send) -> None:
        """Send the error."""
        await answer_error(scope, send, self.status, self.message, self.code, self.headers)


def header_values(scope: Scope, name: bytes) -> list[bytes]:
    """All values of one header of the request. `name` is in lower case, as servers give it."""
    return [value for key, value in scope["headers"] if key == name]


def error_body(message: str, code: str) -> bytes:
    """The body of an error, in the format of OpenAI's."""
    return json.dumps(
        {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}
    ).encode()


async def answer_error(scope: Scope, send: Send, status: int, message: str, code: str, headers: Headers = ()) -> None:
    """Answer an HTTP request or, if the server supports it, a websocket handshake with an error; HEAD gets no body."""
    body = error_body(message, code)
    sent = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    kind = "http.response" if scope["type"] == "http" else "websocket.http.response"
    await send({"type": f"{kind}.start", "status": status, "headers": sent})
    await send({"type": f"{kind}.body", "body": b"" if scope.get("method") == "HEAD" else body})
