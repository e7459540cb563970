"""The types of ASGI 3 that a middleware needs, and answers in the format of OpenAI's errors."""

from __future__ import annotations

import asyncio
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

LARGER = 16  # A body of up to this many times the limit is read to its end before a proxy's client gets 413


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


ANTHROPIC = "/v1/messages"  # the route of Anthropic's API, with those below it; its errors have a form of their own

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


def is_anthropic(scope: Scope) -> bool:
    """Whether the path is one of Anthropic's API."""
    return bool(scope["path"] == ANTHROPIC or scope["path"].startswith(f"{ANTHROPIC}/"))


def error_body(message: str, code: str, scope: Scope | None = None, status: int = 400) -> bytes:
    """The body of an error, in the format of OpenAI's; of Anthropic's if the path of `scope` is one of its API."""
    error: dict[str, object] = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    if scope is None or not is_anthropic(scope):
        return json.dumps({"error": error}).encode()
    kind = "api_error" if status >= 500 else _ANTHROPIC_TYPES.get(status, "invalid_request_error")
    return json.dumps({"type": "error", "error": {**error, "type": kind}}).encode()


async def answer_error(scope: Scope, send: Send, status: int, message: str, code: str, headers: Headers = ()) -> None:
    """Answer an HTTP request or, if the server supports it, a websocket handshake with an error; HEAD gets no body."""
    body = error_body(message, code, scope, status)
    sent = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    kind = "http.response" if scope["type"] == "http" else "websocket.http.response"
    await send({"type": f"{kind}.start", "status": status, "headers": sent})
    await send({"type": f"{kind}.body", "body": b"" if scope.get("method") == "HEAD" else body})


def json_object(body: bytes | bytearray) -> dict[str, Any]:
    """The JSON object in a body; an empty one for anything else."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


async def ask_inside(
    app: App, scope: Scope, path: str, authorization: bytes, posted: bytes | None = None
) -> tuple[int, bytes]:
    """GET a path of the application that serves `scope`, or POST JSON to it; returns the status and the body."""
    parts: list[bytes] = []
    status = 0
    asked = {
        **scope,
        "method": "GET" if posted is None else "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"authorization", authorization)],
    }
    if posted is not None:
        length = (b"content-length", str(len(posted)).encode())
        asked["headers"] += [(b"content-type", b"application/json"), length]

    body: list[Message] = [{"type": "http.request", "body": posted or b"", "more_body": False}]

    async def receive() -> Message:
        # vLLM asks again and again whether the client has left
        return body.pop() if body else await asyncio.Future()

    async def send(message: Message) -> None:
        nonlocal status
        status = message.get("status", status)
        parts.append(message.get("body", b""))

    await app(asked, receive, send)
    return status, b"".join(parts)
