"""The tokens that an answer says it used, in the formats of OpenAI, Anthropic and llama.cpp."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

ANSWER_LIMIT = 32 << 20
"""Bytes of an answer that are kept to read its usage."""

_EVENT_END = re.compile(rb"\r?\n\r?\n")


class Tokens(NamedTuple):
    """Tokens read and generated."""

    prompt: int
    generated: int


class Stream:
    """Server-sent events: reads the usage they state. `strips`: takes out the event that was asked for."""

    def __init__(self, *, strips: bool = False) -> None:
        self.tokens: Tokens | None = None
        self._strips = strips
        self._rest = b""

    def take(self, chunk: bytes, *, more: bool) -> bytes:
        """What to send of the stream after these bytes: whole events, and at its end all that is left."""
        text = self._rest + chunk
        kept, place = [], 0
        for end in _EVENT_END.finditer(text):
            event, place = text[place : end.end()], end.end()
            if not self._note(event):
                kept.append(event)
        self._rest = text[place:]
        if not more:
            kept.append(self._rest)
            self._rest = b""
        return b"".join(kept)

    def _note(self, event: bytes) -> bool:
        """Read an event; return whether it is the one to take out."""
        if b'"usage"' not in event and b'"timings"' not in event:
            return False
        lines = [line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")]
        said = _parsed(b"\n".join(lines))
        found = _tokens(said)
        if found is not None:
            before = self.tokens or Tokens(0, 0)
            # Anthropic's streams state the prompt in the first event, and what was generated so far in later ones
            self.tokens = Tokens(max(before.prompt, found.prompt), max(before.generated, found.generated))
        return self._strips and isinstance(said, dict) and said.get("choices") == [] and found is not None


def tokens_of(body: bytes | bytearray) -> Tokens | None:
    """What a JSON answer says it used; `None` if it says nothing."""
    return _tokens(_parsed(body)) if len(body) <= ANSWER_LIMIT else None


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
                prompt = _count(usage, "prompt_tokens", "input_tokens")
                return Tokens(prompt, _count(usage, "completion_tokens", "output_tokens"))
            if isinstance(timings, dict):
                # prompt_n leaves out the tokens that were in the cache
                return Tokens(_count(timings, "prompt_n") + _count(timings, "cache_n"), _count(timings, "predicted_n"))
    return None


def _count(said: dict[str, Any], *names: str) -> int:
    counts = [said[name] for name in names if type(said.get(name)) is int]
    return max(0, counts[0]) if counts else 0
