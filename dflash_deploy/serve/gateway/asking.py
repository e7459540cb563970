"""Asks the engine to state the tokens of a stream in each chunk, so that a stream that is cut short counts too."""

from __future__ import annotations

import asyncio
import json
import re
from enum import Enum
from typing import Any

from dflash_deploy.serve.gateway.asgi import Message, Receive, Scope
from dflash_deploy.serve.gateway.tokens import Strips

STREAMING = frozenset({"/v1/chat/completions", "/v1/completions"})
"""Routes whose streams state their tokens as the request asks for it."""

IN_A_THREAD = 1 << 18
"""Bytes of a body from which it is parsed outside the event loop: an image has megabytes."""

_OPTIONS = re.compile(rb'"stream_options"\s*:\s*\{')
"""Where the options begin. In the text of a string its quotes are escaped."""

Changed = tuple[bytes | None, Strips]
"""The body to send instead, if it is another one, and what to take out of the answer."""


class Asks(Enum):
    """The field of a request with which an engine is asked."""

    STREAM_OPTIONS = "stream_options"
    """Of vLLM and SGLang: without it, their streams state nothing."""
    TIMINGS = "timings_per_token"
    """Of llama.cpp, whose streams state their tokens at the end anyway."""


async def asking(asks: Asks, scope: Scope, receive: Receive) -> tuple[Scope, Receive, Strips]:
    """The request with the tokens of its stream asked for, and what its client did not ask for."""
    messages = []
    more = True
    while more:
        messages.append(await receive())
        more = messages[-1].get("more_body", False)
    body = b"".join(message.get("body", b"") for message in messages)
    changed, strips = None, Strips.NOTHING
    if messages[-1]["type"] == "http.request" and b'"stream"' in body:
        changed, strips = asked(asks, body) if len(body) < IN_A_THREAD else await asyncio.to_thread(asked, asks, body)
    if changed is None:
        return scope, _replay(messages, receive), strips
    headers = [pair for pair in scope["headers"] if pair[0] not in {b"content-length", b"transfer-encoding"}]
    headers.append((b"content-length", str(len(changed)).encode()))
    whole: list[Message] = [{"type": "http.request", "body": changed, "more_body": False}]
    return {**scope, "headers": headers}, _replay(whole, receive), strips


def asked(asks: Asks, body: bytes) -> Changed:
    """The body that asks for it; none if it is not that of a stream, or asks for it already."""
    try:
        request: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None, Strips.NOTHING
    if not isinstance(request, dict) or request.get("stream") is not True:
        return None, Strips.NOTHING
    return _with_timings(body, request) if asks is Asks.TIMINGS else _with_usage(body, request)


def _with_usage(body: bytes, request: dict[str, Any]) -> Changed:
    name, each = Asks.STREAM_OPTIONS.value, "continuous_usage_stats"
    options = request.get(name)
    wanted = {"include_usage": True, each: True}
    if options is None and name not in request:
        return _begun_with(body, name, wanted), Strips.USAGE
    if options is not None and not isinstance(options, dict):
        return None, Strips.NOTHING
    known = options or {}
    if all(known.get(field) is True for field in wanted):
        return None, Strips.NOTHING
    if known.get("include_usage") is not True:
        return json.dumps({**request, name: {**known, **wanted}}).encode(), Strips.USAGE
    changed, count = _OPTIONS.subn(rb'\g<0>"%b":true,' % each.encode(), body)
    if count != 1 or each in known:
        changed = json.dumps({**request, name: {**known, **wanted}}).encode()
    return changed, Strips.CHUNKS


def _with_timings(body: bytes, request: dict[str, Any]) -> Changed:
    name = Asks.TIMINGS.value
    if request.get(name) is True:
        return None, Strips.NOTHING
    if name in request:
        return json.dumps({**request, name: True}).encode(), Strips.TIMINGS
    return _begun_with(body, name, True), Strips.TIMINGS


def _begun_with(body: bytes, name: str, value: object) -> bytes:
    """A JSON object with one more field; everything else stays as the client wrote it."""
    before, brace, after = body.partition(b"{")
    return before + brace + json.dumps({name: value}, separators=(",", ":")).encode()[1:-1] + b"," + after


def _replay(messages: list[Message], receive: Receive) -> Receive:
    waiting = iter(messages)

    async def again() -> Message:
        for message in waiting:
            return message
        return await receive()

    return again
