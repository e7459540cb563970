"""The answer to one request on its way to the client. All that happens to it happens in `Reply.send`.

It shows that the engine moves, counts the tokens that the answer states, takes out what only the gateway asked for,
gives errors the form of the route's API, and names the key and the origin.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from time import monotonic
from typing import Any

from dflash_deploy.serve.gateway.asgi import (
    ErrorAnswer,
    Headers,
    Message,
    Scope,
    Send,
    answer_error,
    is_anthropic,
    json_object,
)
from dflash_deploy.serve.gateway.keys import KEY_NAME
from dflash_deploy.serve.gateway.progress import Silence
from dflash_deploy.serve.gateway.streams import ANSWER_LIMIT, Stream, Strips, Tokens, tokens_of

LONGEST_ERROR = 1 << 16  # bytes of an engine's error that are read to rewrite it; a longer one is passed on

# The beginning of headers that only the gateway sends: vLLM allows all origins, llama.cpp the one that asks.
_OF_ORIGINS = b"access-control-"

Explains = Callable[[int, str], Awaitable[tuple[int, str]]]

_OF_A_BODY = frozenset({b"content-type", b"content-length", b"content-encoding", b"transfer-encoding"})


class Reply:
    """The answer to one HTTP request. `send` takes the engine's messages, `say` those of the gateway itself.

    `strips`: what is taken out of a stream. `explains`: gives the status and the text that an engine's error gets.
    """

    def __init__(self, scope: Scope, send: Send, origin: Headers) -> None:
        """`origin`: headers for the page that asked."""
        self._scope, self._send = scope, send
        self._headers = [*origin]
        self._status = 0
        self._done = False
        self._held: Message | None = None
        self._stream: Stream | None = None
        self._body = bytearray()
        self._reads = False
        self._silence: Silence | None = None
        self._waits = False
        self.strips = Strips.NOTHING
        self.explains: Explains | None = None

    def name_key(self, name: str) -> None:
        """Name the key of the request in a header, for the log of a proxy."""
        self._headers.append((KEY_NAME.lower().encode(), name.encode()))

    @property
    def status(self) -> str:
        """The status of HTTP; `cancelled` if the answer was cut short."""
        return str(self._status) if self._done else "cancelled"

    def tokens(self) -> Tokens | None:
        """What the answer says it used; `None` if it says nothing."""
        return self._stream.tokens if self._stream is not None else tokens_of(self._body)

    @contextmanager
    def awaited(self, silence: Silence) -> Iterator[None]:
        """The time in which the engine works on the request. It does not wait for it while the client reads."""
        self._silence = silence
        self._wait(silence, True)
        try:
            yield
        finally:
            self._wait(silence, False)
            self._silence = None

    async def send(self, message: Message) -> None:
        """Pass on a message of the engine. An error is held until it is whole."""
        begins, more = message["type"] == "http.response.start", message.get("more_body", False)
        silence = self._silence
        if silence is not None:
            silence.moved(monotonic(), ends=self._waits)
            # a client that does not read its answer does not make the engine hang
            self._waits = False
        if begins:
            self._begin(message)
            if message["status"] >= HTTPStatus.BAD_REQUEST:
                self._held = message
            else:
                await self._out(message)
        elif self._held is not None:
            await self._hold(self._held, message.get("body", b""), more=more)
        elif self._stream is not None:
            self._done = not more
            body = self._stream.take(message.get("body", b""), more=more)
            await self._send({"type": "http.response.body", "body": body, "more_body": more})
        elif message["type"] == "http.response.body":
            self._done = not more
            if self._reads and len(self._body) <= ANSWER_LIMIT:
                self._body += message.get("body", b"")
            await self._send(message)
        else:
            await self._send(message)
        if silence is not None:
            self._wait(silence, begins or more)

    async def say(self, message: Message) -> None:
        """Send a message of the gateway itself."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            await self._out(message)
        else:
            self._done = not message.get("more_body", False)
            await self._send(message)

    async def refuse(self, refusal: ErrorAnswer) -> None:
        """Reply with an error."""
        await refusal.answer(self._scope, self.say)

    def _begin(self, message: Message) -> None:
        self._status = message["status"]
        kinds = [value for name, value in message["headers"] if name.lower() == b"content-type"]
        if kinds and kinds[0].startswith(b"text/event-stream") and self._status < HTTPStatus.BAD_REQUEST:
            self._stream = Stream(self.strips)
        self._reads = bool(kinds) and kinds[0].startswith(b"application/json")

    def _wait(self, silence: Silence, waits: bool) -> None:
        if waits != self._waits:
            (silence.begin if waits else silence.end)(monotonic())
            self._waits = waits

    async def _out(self, message: Message) -> None:
        """Send the beginning of the answer, with the headers of the gateway in place of the engine's own."""
        kept = [pair for pair in message["headers"] if not pair[0].lower().startswith(_OF_ORIGINS)]
        await self._send({**message, "headers": [*kept, *self._headers]})

    async def _hold(self, held: Message, body: bytes, *, more: bool) -> None:
        self._body += body
        self._done = not more
        if len(self._body) > LONGEST_ERROR:
            await self._release(held, more=more)
        elif not more:
            await self._rewrite(held)

    async def _release(self, held: Message, *, more: bool) -> None:
        self._held = None
        await self._out(held)
        await self._send({"type": "http.response.body", "body": bytes(self._body), "more_body": more})

    async def _rewrite(self, held: Message) -> None:
        scope, status, error = self._scope, held["status"], json_object(self._body).get("error")
        text = error.get("message") if isinstance(error, dict) else None
        if _is_no_route(status, text):
            said = f"`{scope['method']} {scope['path'][:80]}` is not a route of this endpoint"
            await answer_error(scope, self._beside, 404, said, "not_found")
            return
        known = text
        if isinstance(text, str) and self.explains is not None:
            status, text = await self.explains(status, text)
        if status != held["status"]:
            error = None
        if isinstance(text, str) and (status != held["status"] or text != known or is_anthropic(scope)):
            kept = [pair for pair in held["headers"] if pair[0].lower() not in _OF_A_BODY]
            await answer_error(scope, self._beside, status, text, _code_of(error), kept)
        else:
            await self._release(held, more=False)

    async def _beside(self, message: Message) -> None:
        """Send a message in place of the engine's, whose status counts."""
        await (self._out if message["type"] == "http.response.start" else self._send)(message)


def _is_no_route(status: int, text: object) -> bool:
    """Whether an engine answers so on a path that it does not know, or was not started for."""
    if status in {HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED}:
        return True
    return status == HTTPStatus.NOT_FOUND and text in {None, "Not Found", "File Not Found"}


def _code_of(error: Any) -> str:
    code = error.get("code") if isinstance(error, dict) else None
    kind = error.get("type") if isinstance(error, dict) else None
    return code if isinstance(code, str) else str(kind or "invalid_request_error")
