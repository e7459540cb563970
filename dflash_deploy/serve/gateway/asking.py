"""Asks the engine to state the tokens of a stream: in each chunk if that is cheap, so that cut streams count too."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import Enum

from dflash_deploy.serve.gateway.request import Request
from dflash_deploy.serve.gateway.tokens import Strips
from dflash_deploy.serve.settings import Settings

CHATS = "/v1/chat/completions"

STREAMING = frozenset({CHATS, "/v1/completions"})
"""Routes whose streams state their tokens as the request asks for it."""

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


def asked(asks: Asks, path: str, request: Request) -> Strips:
    """Ask for the tokens of the stream, if the request is one; returns what its client did not ask for."""
    if path not in STREAMING or not isinstance(request.said, dict) or not _is_true(request.said.get("stream")):
        return Strips.NOTHING
    if asks is Asks.USAGE_AT_END and path != CHATS:
        asks = Asks.USAGE_IN_EACH_CHUNK
    changed, strips = _with_timings(request) if asks is Asks.TIMINGS else _with_usage(asks, request)
    request.body = changed or request.body
    return strips


def _is_true(value: object) -> bool:
    """Whether pydantic takes the value for true: vLLM and SGLang accept more than JSON's `true`."""
    return value.lower() in _TRUE if isinstance(value, str) else value == 1


def _with_usage(asks: Asks, whole: Request) -> Changed:
    body, request = whole.body, whole.said
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


def _with_timings(whole: Request) -> Changed:
    body, request = whole.body, whole.said
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
