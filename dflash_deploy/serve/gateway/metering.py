"""Counts what each key uses, from the engine's own answers, and refuses requests above its limits."""

from __future__ import annotations

import time

from dflash_deploy.serve.gateway.asgi import App, ErrorAnswer, Message, Receive, Scope, Send, header_values
from dflash_deploy.serve.gateway.asking import Asks, asked
from dflash_deploy.serve.gateway.body_limit import read_for_proxy
from dflash_deploy.serve.gateway.keyring import Accepted
from dflash_deploy.serve.gateway.limits import KeyLimits
from dflash_deploy.serve.gateway.media import Media
from dflash_deploy.serve.gateway.request import Request, read, replayed
from dflash_deploy.serve.gateway.scopes import LIMITED, METRICS, REPEATED, UNREPEATED
from dflash_deploy.serve.gateway.tokens import ANSWER_LIMIT, Stream, Strips, Tokens, tokens_of
from dflash_deploy.serve.gateway.usage import KeyCounters

MOST_READ = 1 << 40
"""Bytes of a body above any limit: `BodyLimit` counts them before."""


class Metered:
    """An ASGI application that counts the requests of a key, and passes them to `app`.

    `asks`: how the tokens of a stream are asked for if the client did not. They are taken out of the stream again.
    """

    def __init__(self, app: App, usage: KeyCounters, limits: KeyLimits, media: Media, asks: Asks) -> None:
        self._app = app
        self._media = media
        self._usage = usage
        self._limits = limits
        self._asks = asks

    async def serve(self, key: Accepted, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request that came with `key`."""
        if scope["path"] == METRICS and scope["method"] == "GET":
            await self._with_usage(key, scope, receive, send)
            return
        answer = _Answer(send)
        try:
            with self._usage.at_work(key.name):
                if scope["method"] == "POST":
                    await self._generate(key, scope, receive, answer)
                else:
                    await self._app(scope, receive, answer.send)
        except ErrorAnswer as refusal:
            answer.counts_as = "429" if refusal.status == UNREPEATED else ""
            await refusal.answer(scope, answer.send)
        finally:
            self._usage.count_request(key.name, answer.status)

    async def _generate(self, key: Accepted, scope: Scope, receive: Receive, answer: _Answer) -> None:
        """Serve a request whose tokens count. Raises ErrorAnswer for one above a limit."""
        admission = self._limits.admit(key, time.monotonic())
        if admission.wait is not None:
            await read_for_proxy(scope, receive, MOST_READ)
            raise _limited(key, admission.wait, scope)
        try:
            request = await read(scope, receive)
            if request is not None:
                await self._media.check(request)
                await self._counted(key, request, scope, receive, answer)
        finally:
            self._limits.leave(key, admission.place)

    async def _counted(self, key: Accepted, request: Request, scope: Scope, receive: Receive, answer: _Answer) -> None:
        begun, most = time.monotonic(), key.tokens_per_minute or 0
        # more than the limit would keep others out no longer, and a client may state any number
        reserved = min(request.tokens(most), most)
        if (wait := self._limits.reserve(key, reserved, begun)) is not None:
            raise _limited(key, wait, scope)
        answer.strips = asked(self._asks, scope["path"], request)
        try:
            await self._app(*replayed(scope, request, receive), answer.send)
        finally:
            used = answer.tokens()
            self._limits.settle(key, reserved, begun, sum(used or ()), time.monotonic())
            if used:
                self._usage.count_tokens(key.name, used.prompt, used.generated)

    async def _with_usage(self, key: Accepted, scope: Scope, receive: Receive, send: Send) -> None:
        """The engine's metrics with those of the keys after them, as plain text."""
        kept = [pair for pair in scope["headers"] if pair[0] not in {b"accept", b"accept-encoding"}]
        status = 500

        async def pass_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [pair for pair in message["headers"] if pair[0].lower() != b"content-length"]
                message = {**message, "headers": headers}
            elif status == 200 and not message.get("more_body", False):
                message = {**message, "body": _ended(message.get("body", b"")) + self._usage.exposition()}
            await send(message)

        try:
            await self._app({**scope, "headers": kept}, receive, pass_on)
        finally:
            self._usage.count_request(key.name, str(status))


def _limited(key: Accepted, wait: int, scope: Scope) -> ErrorAnswer:
    said = f"the limit of the key `{key.name}` is reached: try again in {wait} s"
    again = [(b"retry-after", str(wait).encode())]
    if header_values(scope, REPEATED.lower().encode()):
        return ErrorAnswer(UNREPEATED, said, "rate_limit_exceeded", [*again, (LIMITED.lower().encode(), b"429")])
    return ErrorAnswer(429, said, "rate_limit_exceeded", again)


class _Answer:
    """Passes an answer on and reads the tokens that it states, also if its client leaves before the end."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._status = 0
        self._done = False
        self._stream: Stream | None = None
        self._body = bytearray()
        self._reads = False
        self.strips = Strips.NOTHING
        self.counts_as = ""

    @property
    def status(self) -> str:
        """The status of HTTP; `cancelled` if the answer was cut short."""
        return (self.counts_as or str(self._status)) if self._done else "cancelled"

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            kinds = [value for name, value in message["headers"] if name.lower() == b"content-type"]
            if kinds and kinds[0].startswith(b"text/event-stream"):
                self._stream = Stream(self.strips)
            self._reads = bool(kinds) and kinds[0].startswith(b"application/json")
        elif message["type"] == "http.response.body":
            message = self._noted(message)
        await self._send(message)

    def _noted(self, message: Message) -> Message:
        more = message.get("more_body", False)
        self._done = not more
        body = message.get("body", b"")
        if self._stream is not None:
            return {**message, "body": self._stream.take(body, more=more)}
        if self._reads and len(self._body) <= ANSWER_LIMIT:
            self._body += body
        return message

    def tokens(self) -> Tokens | None:
        """What the answer says it used; `None` if it says nothing."""
        if self._stream is not None:
            return self._stream.tokens
        return tokens_of(self._body)


def _ended(text: bytes) -> bytes:
    return text if not text or text.endswith(b"\n") else text + b"\n"
