"""One streamed completion among many: the arrival time of each chunk.

The times are defined as in vLLM's benchmark (vllm/benchmarks/lib/endpoint_request_func.py, 0.32.0), except that a first
chunk with only the role is not a token: some servers send it before they read the prompt.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

if TYPE_CHECKING:
    import aiohttp


PATH = "v1/chat/completions"

# Seconds without the headers of the answer, or without a whole line: requests under load wait for each other.
HEADERS_TIMEOUT = LINE_TIMEOUT = 900.0

MOST_OF_LINE = 2**20  # bytes of one line of a stream
MOST_OF_REFUSAL = 2**16  # bytes that are read of a refusal
MOST_CHUNKS = 2**20  # chunks of one request
MOST_TEXT = 2**22  # characters of one answer, which are kept
_TEXTS = ("content", "reasoning_content", "reasoning", "tool_calls")  # fields of a delta that contain generated text


@dataclass
class TimedCompletion:
    """One request as its client saw it. Times are in seconds since it was sent; token counts are the server's.

    `gaps` are the times between chunks; `problem` is empty if the request succeeded. `cached_tokens` are the tokens of
    the prompt that were in the prefix cache; `None` if the server does not report them.
    """

    ttft: float = 0.0
    seconds: float = 0.0
    gaps: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    problem: str = ""
    cached_tokens: int | None = None
    text: str = ""

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first; `None` if there are fewer than two tokens."""
        return (self.seconds - self.ttft) / (self.completion_tokens - 1) if self.completion_tokens > 1 else None


def streaming_body(body: Mapping[str, object]) -> bytes:
    """Return the body of a streaming request with usage in its last chunk."""
    return json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()


async def time_completion(session: aiohttp.ClientSession, body: bytes) -> TimedCompletion:
    """Send a request of `streaming_body` and measure its chunks. Errors are returned in `problem`."""
    import aiohttp  # noqa: PLC0415 - 0.2 s, needed under load only

    clock = _Clock(time.perf_counter())
    try:
        # a redirect would measure another endpoint
        async with asyncio.timeout(HEADERS_TIMEOUT):
            response = await session.post(PATH, data=body, allow_redirects=False)
        async with response:
            if response.status != HTTPStatus.OK:
                said = " ".join((await response.content.read(MOST_OF_REFUSAL)).decode("utf-8", "replace").split())[:300]
                return TimedCompletion(problem=f"POST /{PATH} answered {response.status}: {said}")
            rest, seen = b"", time.perf_counter()
            async for received in response.content.iter_any():
                *lines, rest = (rest + received).split(b"\n")
                now = time.perf_counter()
                seen = now if lines else seen
                if now - seen > LINE_TIMEOUT:
                    return TimedCompletion(problem=f"the stream had no whole line for {LINE_TIMEOUT:g} s")
                if len(rest) > MOST_OF_LINE:
                    return TimedCompletion(problem=f"the stream has a line of more than {MOST_OF_LINE} bytes")
                for line in lines:
                    clock.read(line, now)
            clock.read(rest, time.perf_counter())
    except (aiohttp.ClientError, OSError) as problem:
        return TimedCompletion(problem=f"the stream broke off: {str(problem) or type(problem).__name__}")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as problem:
        return TimedCompletion(
            problem=f"the stream has an unexpected event: {type(problem).__name__}: {str(problem)[:300]}"
        )
    return clock.timed()


def _count(usage: object, name: str) -> int:
    """Return a count of tokens, 0 if the server did not report a valid one."""
    count = usage.get(name, 0) if isinstance(usage, dict) else 0
    return count if type(count) is int and 0 <= count < 2**53 else 0


def _cached(usage: object, timings: object) -> int | None:
    """Return the cached tokens of the prompt: by OpenAI's usage, else by llama.cpp's timings."""
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    for said, name in ((details, "cached_tokens"), (timings, "cache_n")):
        if isinstance(said, dict) and name in said:
            return _count(said, name)
    return None


class _Clock:
    """Reads the lines of one response with server-sent events."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._last: float | None = None
        self._usage: object = {}
        self._timings: object = {}
        self._texts: list[str] = []
        self._size = 0
        self._timed = TimedCompletion()

    def read(self, line: bytes, now: float) -> None:
        """Read one line that arrived at `now`."""
        if not line.startswith(b"data:") or (data := line[5:].strip()) == b"[DONE]":
            return
        event: dict[str, Any] = from_json(data, allow_inf_nan=False)
        if "error" in event:
            # an engine that dies during a stream cannot change the status any more
            self._timed.problem = f"the stream ended with an error: {str(event['error'])[:300]}"
            return
        self._usage = event.get("usage") or self._usage
        self._timings = event.get("timings") or self._timings
        if not event["choices"]:
            return
        if isinstance(text := event["choices"][0]["delta"].get("content"), str):
            self._texts.append(text)
            self._size += len(text)
            if self._size > MOST_TEXT:
                raise ValueError(f"more than {MOST_TEXT} characters")
        if len(self._timed.gaps) >= MOST_CHUNKS:
            raise ValueError(f"more than {MOST_CHUNKS} chunks")
        if self._last is None:
            choice = event["choices"][0]
            if not choice.get("finish_reason") and not any(choice["delta"].get(name) for name in _TEXTS):
                return
            self._timed.ttft = now - self._started
        else:
            self._timed.gaps.append(now - self._last)
        self._last = now

    def timed(self) -> TimedCompletion:
        """Return the measurements of the whole stream."""
        timed = self._timed
        if self._last is None:
            timed.problem = timed.problem or "the stream has no answer"
            return timed
        timed.seconds = self._last - self._started
        timed.prompt_tokens = _count(self._usage, "prompt_tokens")
        timed.completion_tokens = _count(self._usage, "completion_tokens")
        timed.cached_tokens = _cached(self._usage, self._timings)
        timed.text = "".join(self._texts)
        if not timed.completion_tokens:
            timed.problem = timed.problem or "the server did not report usage (generated tokens)"
        return timed
