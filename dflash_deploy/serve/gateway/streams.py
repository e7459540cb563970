"""Reads the tokens that an answer states, and takes out of streams what only the gateway asked for.

Answers state their tokens in the formats of OpenAI, Anthropic and llama.cpp.
"""

from __future__ import annotations

import json
import re
from enum import Enum
from itertools import pairwise
from typing import Any, NamedTuple

ANSWER_LIMIT = 32 << 20  # bytes of an answer that are kept to read its usage

# in streams they are searched for with `find`: `in` raises and drops an error inside, and takes twice as long
USAGE, TIMINGS = b'"usage"', b'"timings"'  # keys of an answer that contain token counts
_EVENT_END = re.compile(rb"\r?\n\r?\n")

# the text of a string cannot match: its quotes are escaped
_USAGE = re.compile(rb',\s*"usage":\s*(?:null|\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')
_TIMINGS = re.compile(rb',\s*"timings":\s*\{[^{}]*\}')
_ROLE = re.compile(rb'"role":\s*"')
_INDEX = re.compile(rb'"index":\s*(\d+)')


class Tokens(NamedTuple):
    """Tokens read and generated."""

    prompt: int
    generated: int


class Strips(Enum):
    """What the gateway takes out of a stream, because it asked for it and the client did not."""

    NOTHING = "nothing"
    TIMINGS = "llama.cpp's timings of each chunk but the last"
    CHUNKS = "the usage of each chunk"
    USAGE = "the usage of each chunk, and the event at the end that has no choices"
    """That event has the usage, and vLLM's `system_fingerprint` and `metrics`."""


class Stream:
    """Server-sent events: reads the tokens they state, also of a stream that is cut short.

    Engines state them in the event at the end, and in each chunk if the request asks for it: what was generated so far.
    If a stream ends before it states any, each of its chunks counts as one token: it has at least one.
    """

    def __init__(self, strips: Strips = Strips.NOTHING) -> None:
        # a comparison of enumerations for each chunk takes longer than what it decides
        self._strips = strips is not Strips.NOTHING
        self._timings = strips is Strips.TIMINGS
        self._field = (b',"timings":{' if self._timings else b',"usage":{') if self._strips else b""
        self._drops_the_end = strips is Strips.USAGE
        self._rest = b""
        self._stated: Tokens | None = None
        self._whole = 0
        self._unstated = 0
        self._chunks: dict[bytes, bytes] = {}

    @property
    def tokens(self) -> Tokens | None:
        """The tokens stated so far; `None` if there are none."""
        # a chunk has those of its own answer only, if the request asks for several
        chunks = [found for event in self._chunks.values() if (found := _tokens(_data(event))) is not None]
        if self._stated is None and not chunks:
            return Tokens(0, self._unstated) if self._unstated else None
        stated = self._stated or Tokens(0, 0)
        prompt = max((stated.prompt, *(chunk.prompt for chunk in chunks)))
        return Tokens(prompt, max(stated.generated, self._whole, sum(chunk.generated for chunk in chunks)))

    def take(self, chunk: bytes, *, more: bool) -> bytes:
        """What to send of the stream after these bytes: whole events, and at its end all that is left."""
        if more and not self._rest and self._field and (usual := self._usual(chunk, self._field)) is not None:
            return usual
        text = self._rest + chunk
        if text.find(b"\r") >= 0:
            ends = [end.end() for end in _EVENT_END.finditer(text)]
            whole = [text[begin:end] for begin, end in pairwise((0, *ends))]
            self._rest = text[ends[-1] :] if ends else text
        else:
            *lines, self._rest = text.split(b"\n\n")
            whole = [line + b"\n\n" for line in lines]
        kept = [self._noted(event) for event in whole]
        if not more:
            kept.append(self._rest)
            self._rest = b""
        return b"".join(kept)

    def _usual(self, chunk: bytes, field: bytes) -> bytes | None:
        """What to send of one whole event in the form that most have; `None` for anything else.

        It has one line, one choice, and `field` at its end, without an object in it.
        """
        before, _, said = chunk.rpartition(field)
        if said[said.find(b"}") :] != b"}}\n\n" or before.find(b"\n") >= 0:
            return None
        choice = before.partition(b'"choices":[{')[2]
        index = choice.partition(b'"index":')[2][:2]
        if index[1:] != b"," or (self._timings and choice.find(b'"finish_reason":null') < 0):
            return None
        self._chunks[index[:1]] = chunk
        return before + b"}\n\n"

    def _noted(self, event: bytes) -> bytes:
        """What to send of an event, whose tokens are read or kept for later: reading takes longer than sending."""
        if self._field and (usual := self._usual(event, self._field)) is not None:
            return usual
        if event.find(TIMINGS) < 0 and event.find(USAGE) < 0:
            # the chunk with the role precedes all tokens, and the last one can be empty
            self._unstated += _is_unfinished(event) and not _ROLE.search(event)
            return event
        index = _INDEX.search(event)
        if index is not None and _has_choices(event):
            self._chunks[index[1]] = event
            return self._stripped(event)
        found = _tokens(said := _data(event))
        if found is None:
            return event
        # Anthropic's streams state the prompt in the first event, and what was generated so far in later ones
        before = self._stated or Tokens(0, 0)
        self._stated = Tokens(max(before.prompt, found.prompt), max(before.generated, found.generated))
        ends = isinstance(said, dict) and said.get("choices") == []
        # llama.cpp has such an event for each of several answers
        self._whole += found.generated if ends else 0
        return b"" if ends and self._drops_the_end else event

    def _stripped(self, event: bytes) -> bytes:
        if not self._strips or (self._timings and not _is_unfinished(event)):
            return event
        name, field = (TIMINGS, _TIMINGS) if self._timings else (USAGE, _USAGE)
        # searched for from its name on: from the beginning of the event, it takes five times as long
        begin = event.rfind(b"," + name)
        match = field.match(event, begin) if begin >= 0 else None
        return event[:begin] + event[match.end() :] if match else field.sub(b"", event)


def _has_choices(event: bytes) -> bool:
    return event.find(b'"choices"') >= 0 and event.find(b'"choices":[]') < 0 and event.find(b'"choices": []') < 0


def _is_unfinished(event: bytes) -> bool:
    return event.find(b'"finish_reason":null') >= 0 or event.find(b'"finish_reason": null') >= 0


def tokens_of(body: bytes | bytearray) -> Tokens | None:
    """What a JSON answer says it used; `None` if it says nothing."""
    if len(body) > ANSWER_LIMIT or not (USAGE in body or TIMINGS in body):
        return None
    said = _parsed(body)
    # llama.cpp answers several prompts of /completion with a list
    found = [tokens for one in (said if isinstance(said, list) else [said]) if (tokens := _tokens(one)) is not None]
    return Tokens(sum(one.prompt for one in found), sum(one.generated for one in found)) if found else None


def _data(event: bytes) -> Any:
    return _parsed(b"\n".join(line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")))


def _parsed(text: bytes | bytearray) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _tokens(said: Any) -> Tokens | None:
    if not isinstance(said, dict):
        return None
    # the events of /v1/responses and /v1/messages have the answer inside
    for part in (said, said.get("response"), said.get("message")):
        if isinstance(part, dict):
            usage, timings = part.get("usage"), part.get("timings")
            if isinstance(usage, dict):
                # Anthropic's format leaves the tokens that were in the cache out of `input_tokens`
                cached = sum(_count(usage, f"cache_{what}_input_tokens") for what in ("read", "creation"))
                prompt = _count(usage, "prompt_tokens", "input_tokens") + cached
                return Tokens(prompt, _count(usage, "completion_tokens", "output_tokens"))
            if isinstance(timings, dict):
                # prompt_n leaves out the tokens that were in the cache
                return Tokens(_count(timings, "prompt_n") + _count(timings, "cache_n"), _count(timings, "predicted_n"))
    return None


def _count(said: dict[str, Any], *names: str) -> int:
    counts = [said[name] for name in names if type(said.get(name)) is int]
    return max(0, counts[0]) if counts else 0
