"""The body of a request: limited in size, and read once, after its key is known.

The limit holds with a Content-Length and in chunks; packed bodies are refused. A body is read as JSON, within limits of
time and of what it may contain.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dflash_deploy.serve.gateway.asgi import (
    LARGER,
    MIB,
    ErrorAnswer,
    Message,
    Receive,
    Scope,
    header_values,
)

REST_SECONDS = 30.0  # seconds within which the rest of a refused body is read


async def check_head(scope: Scope, receive: Receive, most: int) -> None:
    """Raises ErrorAnswer for a body that is packed, or announced as larger than `most` bytes: no engine unpacks any."""
    if any(one.strip().lower() != b"identity" for one in header_values(scope, b"content-encoding")):
        await read_for_proxy(scope, receive, most)
        raise ErrorAnswer(415, "the body is packed (Content-Encoding): send it as it is", "unsupported_encoding")
    if (_announced(scope) or 0) > most:
        await read_for_proxy(scope, receive, most * LARGER)
        raise too_large(most)


def too_large(most: int) -> ErrorAnswer:
    """The refusal of a body above `most` bytes.

    The connection stays open and the rest of the body is discarded: otherwise a client that is still sending would see
    a connection reset instead of this answer.
    """
    said = f"the request body is larger than {most / MIB:g} MiB, the limit of this endpoint"
    return ErrorAnswer(413, said, "request_too_large")


def unread(receive: Receive) -> Receive:
    """A request without its body, for methods that have none: what arrives is discarded."""
    begun = False

    async def nothing() -> Message:
        nonlocal begun
        if not begun:
            begun = True
            return {"type": "http.request", "body": b"", "more_body": False}
        while (message := await receive())["type"] == "http.request":
            pass
        return message

    return nothing


def _announced(scope: Scope) -> int | None:
    """The Content-Length in bytes; `None` if it is missing, ambiguous, or overridden by Transfer-Encoding."""
    lengths = header_values(scope, b"content-length")
    if len(lengths) != 1 or not lengths[0].isdigit() or header_values(scope, b"transfer-encoding"):
        return None
    # a longer number is above any limit, and Python refuses to convert thousands of digits
    return int(lengths[0]) if len(lengths[0]) <= 18 else 10**18


async def read_for_proxy(scope: Scope, receive: Receive, most: int) -> None:
    """Read and discard the body of a request that is refused, at most `most` bytes, if a reverse proxy passes it on.

    Proxies pass an early answer on and then reset the connection of a client that is still sending. A request that
    waits for `100 Continue` has sent nothing.
    """
    if scope["type"] != "http":
        return
    if header_values(scope, b"expect") or (_announced(scope) or 0) > most:
        return
    await _read_rest(scope, receive, most)


async def _read_rest(scope: Scope, receive: Receive, most: int) -> None:
    proxied = header_values(scope, b"via") or header_values(scope, b"x-forwarded-for")
    read, more = 0, bool(proxied)
    # a client can write these headers itself, and then send nothing
    with suppress(TimeoutError):
        async with asyncio.timeout(REST_SECONDS):
            while more and read <= most:
                message = await receive()
                read += len(message.get("body", b""))
                more = message.get("more_body", False)


IN_A_THREAD = 1 << 18  # bytes of a body from which it is parsed outside the event loop: an image has megabytes
BODY_SECONDS = 300.0  # seconds for a body, after which its request is given up: 64 MiB at 2 Mbit/s

# Commas and brackets in a body. Parsing that many takes less than a second; a prompt of token numbers has one each.
MOST_VALUES = 2_000_000

MOST_MESSAGES = 4096  # messages of one conversation. llama.cpp's time for them grows faster than their number.

# What is reserved for a prompt. English has about four bytes per token; Qwen's towers read 32 x 32 pixels as one.
BYTES_PER_TOKEN, PIXELS_PER_TOKEN = 3, 1000

UNSTATED = 1024  # tokens that are reserved for an answer whose request states no most

# Routes that take files in a form instead of JSON.
FORMS = frozenset({"/v1/audio/transcriptions", "/v1/audio/translations", "/audio/transcriptions"})

# Fields with the most tokens of an answer, in the APIs of OpenAI and Anthropic.
ANSWER_TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens")

_GENERATED = (*ANSWER_TOKENS, "n_predict", "max_new_tokens")
_CONVERSATIONS = ("messages", "input")
_CHOICES = ("n", "best_of", "n_cmpl")  # of OpenAI's API, its older form, and llama.cpp


def texts_of(value: object) -> list[str]:
    """The texts of a field: itself, those of a list, and those of its parts."""
    if isinstance(value, str):
        return [value]
    found = value if isinstance(value, list) else []
    parts = (one.get("text") if isinstance(one, dict) else one for one in found)
    return [one for one in parts if isinstance(one, str)]


@dataclass
class Request:
    """The body of a request: its bytes, and what they say; `said` is `None` for an empty body and for a form."""

    body: bytes
    said: Any = None
    media: int = 0
    """Characters of the body that are pictures, sounds and videos."""
    pixels: int = 0
    """Of all its pictures together."""

    def tokens(self, most: int) -> int:
        """About how many tokens the request will use; at most `most` are generated if it states no limit of its own."""
        said = self.said if isinstance(self.said, dict) else {}
        stated = [said[name] for name in _GENERATED if type(said.get(name)) is int and said[name] > 0]
        read = (len(self.body) - self.media) // BYTES_PER_TOKEN + self.pixels // PIXELS_PER_TOKEN
        return int(read + self.sequences * max(stated, default=min(most, UNSTATED)))

    @property
    def sequences(self) -> int:
        """How many answers the engine generates for the request at the same time: for each prompt, and each choice."""
        said = self.said if isinstance(self.said, dict) else {}
        choices = [said[name] for name in _CHOICES if type(said.get(name)) is int and said[name] > 0]
        prompts = said.get("prompt")
        # numbers are the tokens of one prompt
        several = prompts if isinstance(prompts, list) and not all(type(one) is int for one in prompts) else [prompts]
        return max(choices, default=1) * len(several)

    @property
    def longest_text(self) -> int:
        """Characters of its longest prompt; those of a conversation count together."""
        said = self.said if isinstance(self.said, dict) else {}
        prompts = [text for name in ("prompt", "content", "text") for text in texts_of(said.get(name))]
        talks = (
            sum(
                len(text)
                for one in said.get(name, ())
                if isinstance(one, dict)
                for text in texts_of(one.get("content"))
            )
            for name in _CONVERSATIONS
            if isinstance(said.get(name), list)
        )
        return max((*map(len, prompts), *map(len, texts_of(said.get("input"))), *talks), default=0)

    def rewrite(self) -> None:
        """Make the bytes those of what is said."""
        self.body = json.dumps(self.said).encode()


async def read(scope: Scope, receive: Receive, most: int) -> Request | None:
    """The whole request; `None` if its client left. Raises ErrorAnswer for a body that the gateway does not pass on.

    Engines read JSON whatever the content type says, so the gateway does too, and refuses what it cannot read: what it
    has not read, it has not checked.
    """
    kind = b"".join(header_values(scope, b"content-type")).strip().lower()
    form = kind.startswith(b"multipart/")
    if form and scope["path"] not in FORMS:
        raise ErrorAnswer(415, "the body is a form: send JSON", "unsupported_media_type")
    body = await _whole(scope, receive, most)
    if body is None:
        return None
    if form or not body.strip():
        return Request(body)
    return parsed(body) if len(body) < IN_A_THREAD else await asyncio.to_thread(parsed, body)


def parsed(body: bytes) -> Request:
    """The request with these bytes. Raises ErrorAnswer for what is not JSON, and for more than an engine should read.

    Of a field that an object has twice, the last one counts, and the engine gets only that: engines differ in this.
    """
    if sum(body.count(mark) for mark in (b",", b"[", b"{")) > MOST_VALUES:
        raise ErrorAnswer(400, f"the body has more than {MOST_VALUES} values", "request_too_large")
    request, repeated = Request(body), False

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeated
        fields = dict(pairs)
        repeated = repeated or len(fields) < len(pairs)
        return fields

    try:
        request.said = json.loads(body, object_pairs_hook=once, parse_int=_whole_number)
    except (ValueError, RecursionError):
        raise ErrorAnswer(400, "the body is not valid JSON", "invalid_json") from None
    for name in _CONVERSATIONS:
        turns = request.said.get(name) if isinstance(request.said, dict) else None
        if isinstance(turns, list) and len(turns) > MOST_MESSAGES:
            raise ErrorAnswer(400, f"`{name}` has more than {MOST_MESSAGES} entries", "request_too_large")
    # and engines read UTF-8 only, or guess differently
    if repeated or b"\0" in body:
        request.rewrite()
    return request


def replayed(scope: Scope, request: Request, receive: Receive) -> tuple[Scope, Receive]:
    """The request as the application gets it: whole, with its length."""
    headers = [pair for pair in scope["headers"] if pair[0] not in {b"content-length", b"transfer-encoding"}]
    headers.append((b"content-length", str(len(request.body)).encode()))
    first: list[Message] = [{"type": "http.request", "body": request.body, "more_body": False}]

    async def again() -> Message:
        return first.pop() if first else await receive()

    return {**scope, "headers": headers}, again


async def _whole(scope: Scope, receive: Receive, most: int) -> bytes | None:
    parts, length, more = [], 0, True
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while more:
                message = await receive()
                if message["type"] != "http.request":
                    return None
                parts.append(message.get("body", b""))
                length += len(parts[-1])
                more = message.get("more_body", False)
                if length > most:
                    break
    except TimeoutError:
        said = f"the body took longer than {BODY_SECONDS:g} s"
        raise ErrorAnswer(408, said, "request_timeout", [(b"connection", b"close")]) from None
    if length > most:
        if more:
            await _read_rest(scope, receive, most * LARGER)
        raise too_large(most)
    return b"".join(parts)


def _whole_number(text: str) -> int | float:
    """A number. Python refuses to convert thousands of digits, which engines read as an imprecise one."""
    return int(text) if len(text) < 40 else float(text)
