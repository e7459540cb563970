"""Asks the engine to state the tokens of a stream: in each chunk if that is cheap, so that cut streams count too."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

from dflash_deploy.serve.gateway.asgi import Message, Receive, Scope
from dflash_deploy.serve.gateway.tokens import Strips
from dflash_deploy.serve.settings import Settings

CHATS = "/v1/chat/completions"

STREAMING = frozenset({CHATS, "/v1/completions"})
"""Routes whose streams state their tokens as the request asks for it."""

IN_A_THREAD = 1 << 18
"""Bytes of a body from which it is parsed outside the event loop: an image has megabytes."""

_OPTIONS = re.compile(rb'"stream_options"\s*:\s*\{')
"""Where the options begin. In the text of a string its quotes are escaped."""

_TRUE = frozenset({"1", "on", "t", "true", "y", "yes"})
"""The words that pydantic takes for true in a field of the type `bool`."""

Changed = tuple[bytes | None, Strips]
"""The body to send instead, if it is another one, and what to take out of the answer."""


class Asks(Enum):
    """The field of a request with which an engine is asked."""

    USAGE_AT_END = "include_usage"
    """Of vLLM with a reasoning parser, for chats: to state usage in each chunk, it counts all reasoning tokens of the
    answer again for each chunk (0.32 and 0.33, entrypoints/openai/chat_completion/serving.py)."""
    USAGE_IN_EACH_CHUNK = "continuous_usage_stats"
    """Of vLLM and SGLang."""
    TIMINGS = "timings_per_token"
    """Of llama.cpp, whose streams state their tokens at the end anyway."""


def asks_of_vllm(environment: Mapping[str, str]) -> Asks:
    """How vLLM with these settings is asked. Raises Refused for a setting that is not valid."""
    return Asks.USAGE_AT_END if Settings.reasoning_parser.read(environment) else Asks.USAGE_IN_EACH_CHUNK


async def asking(asks: Asks, scope: Scope, receive: Receive) -> tuple[Scope, Receive, Strips]:
    """The request with the tokens of its stream asked for, and what its client did not ask for."""
    if asks is Asks.USAGE_AT_END and scope["path"] != CHATS:
        asks = Asks.USAGE_IN_EACH_CHUNK
    messages = []
    more = True
    while more:
        messages.append(await receive())
        more = messages[-1].get("more_body", False)
    body = b"".join(message.get("body", b"") for message in messages)
    changed, strips = None, Strips.NOTHING
    if messages[-1]["type"] == "http.request" and _may_stream(body):
        changed, strips = asked(asks, body) if len(body) < IN_A_THREAD else await asyncio.to_thread(asked, asks, body)
    if changed is None:
        return scope, _replay(messages, receive), strips
    headers = [pair for pair in scope["headers"] if pair[0] not in {b"content-length", b"transfer-encoding"}]
    headers.append((b"content-length", str(len(changed)).encode()))
    whole: list[Message] = [{"type": "http.request", "body": changed, "more_body": False}]
    return {**scope, "headers": headers}, _replay(whole, receive), strips


def asked(asks: Asks, body: bytes) -> Changed:
    """The body that asks for it; `None` if the request is not a stream, or already asks for usage."""
    try:
        request: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None, Strips.NOTHING
    if not isinstance(request, dict) or not _is_true(request.get("stream")):
        return None, Strips.NOTHING
    if b"\0" in body:
        # UTF-16 or UTF-32, which json.loads accepts
        body = json.dumps(request).encode()
    return _with_timings(body, request) if asks is Asks.TIMINGS else _with_usage(asks, body, request)


def _may_stream(body: bytes) -> bool:
    """Whether the body can have a field `stream`; in JSON its name can have escapes, or another encoding than UTF-8."""
    return b'"stream"' in body or b"\\u" in body or b"\0" in body


def _is_true(value: object) -> bool:
    """Whether pydantic takes the value for true: vLLM and SGLang accept more than JSON's `true`."""
    return value.lower() in _TRUE if isinstance(value, str) else value == 1


def _with_usage(asks: Asks, body: bytes, request: dict[str, Any]) -> Changed:
    name, usage, each = "stream_options", Asks.USAGE_AT_END.value, Asks.USAGE_IN_EACH_CHUNK.value
    options = request.get(name)
    # the second field has an effect only with the first
    wanted = {usage: True} if asks is Asks.USAGE_AT_END else {usage: True, each: True}
    if options is None and name not in request:
        return _begun_with(body, name, wanted), Strips.USAGE
    if options is not None and not isinstance(options, dict):
        return None, Strips.NOTHING
    known = options or {}
    if all(_is_true(known.get(field)) for field in wanted):
        return None, Strips.NOTHING
    if not _is_true(known.get(usage)):
        return json.dumps({**request, name: {**known, each: False, **wanted}}).encode(), Strips.USAGE
    changed, count = _OPTIONS.subn(rb'\g<0>"%b":true,' % each.encode(), body)
    if count != 1 or each in known or b"\\u" in body:
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
