"""Counts what each key uses, from the engine's own answers, and refuses requests above its limits."""

from __future__ import annotations

import time

from dflash_deploy.serve.gateway.asgi import App, Message, Receive, Scope, Send, answer_error, header_values
from dflash_deploy.serve.gateway.asking import STREAMING, Asks, asking
from dflash_deploy.serve.gateway.body_limit import read_for_proxy
from dflash_deploy.serve.gateway.keyring import Accepted
from dflash_deploy.serve.gateway.limits import Admission, KeyLimits
from dflash_deploy.serve.gateway.scopes import LIMITED, METRICS, REPEATED, UNREPEATED
from dflash_deploy.serve.gateway.tokens import ANSWER_LIMIT, Stream, Strips, Tokens, tokens_of
from dflash_deploy.serve.gateway.usage import KeyCounters

MOST_READ = 1 << 40
"""Bytes of a body above any limit: `BodyLimit` counts them before."""


class Metered:
    """An ASGI application that counts the requests of a key, and passes them to `app`.

    `asks`: how the tokens of a stream are asked for if the client did not. They are taken out of the stream again.
    """

    def __init__(self, app: App, usage: KeyCounters, limits: KeyLimits, asks: Asks) -> None:
        self._app = app
        self._usage = usage
        self._limits = limits
        self._asks = asks

    async def serve(self, key: Accepted, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request that came with `key`."""
        generates = scope["method"] == "POST"
        admission = self._limits.admit(key, time.monotonic()) if generates else Admission()
        if admission.wait is not None:
            self._usage.count_request(key.name, "429")
            said = f"the limit of the key `{key.name}` is reached: try again in {admission.wait} s"
            await read_for_proxy(scope, receive, MOST_READ)
            again = [(b"retry-after", str(admission.wait).encode())]
            status = 429
            if header_values(scope, REPEATED.lower().encode()):
                status, again = UNREPEATED, [*again, (LIMITED.lower().encode(), b"429")]
            await answer_error(scope, send, status, said, "rate_limit_exceeded", again)
            return
        if scope["path"] == METRICS and scope["method"] == "GET":
            await self._with_usage(key, scope, receive, send)
            return
        answer = _Answer(send)
        try:
            with self._usage.at_work(key.name):
                if generates and scope["path"] in STREAMING:
                    scope, receive, answer.strips = await asking(self._asks, scope, receive)
                await self._app(scope, receive, answer.send)
        finally:
            self._limits.leave(key, admission.place)
            self._usage.count_request(key.name, answer.status)
            if generates and (used := answer.tokens()):
                self._usage.count_tokens(key.name, used.prompt, used.generated)
                self._limits.spend(key, used.prompt + used.generated, time.monotonic())

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

    @property
    def status(self) -> str:
        """The status of HTTP; `cancelled` if the answer was cut short."""
        return str(self._status) if self._done else "cancelled"

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
