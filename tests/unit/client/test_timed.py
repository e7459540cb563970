"""What one answer under load says: its text, and how much of its prompt was in the prefix cache."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Self, cast

import pytest

from dflash_deploy.client import stream
from dflash_deploy.client.stream import TimedCompletion, streaming_body, time_completion


class Answered:
    """A session, its response, and the body of it."""

    status = 200

    def __init__(self, *events: dict[str, Any]) -> None:
        self.events = events

    async def post(self, *_: object, **__: object) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing."""

    @property
    def content(self) -> Self:
        return self

    async def iter_any(self) -> AsyncIterator[bytes]:
        for event in self.events:
            yield f"data: {json.dumps(event)}\n\n".encode()


def timed(*texts: str, **last: Any) -> TimedCompletion:
    chunks = [{"choices": [{"delta": {"content": text}}]} for text in texts]
    usage = {"prompt_tokens": 50, "completion_tokens": 4, **last.pop("usage", {})}
    session = Answered(*chunks, {"choices": [], "usage": usage, **last})
    return asyncio.run(time_completion(cast("Any", session), streaming_body({})))


@pytest.mark.parametrize(
    ("last", "cached"),
    [
        ({}, None),
        ({"usage": {"prompt_tokens_details": None}}, None),
        ({"usage": {"prompt_tokens_details": {"cached_tokens": 32}}}, 32),
        ({"timings": {"cache_n": 7}}, 7),
        ({"usage": {"prompt_tokens_details": {"cached_tokens": "many"}}}, 0),
    ],
)
def test_an_answer_says_what_was_cached(last: dict[str, Any], cached: int | None) -> None:
    done = timed("Pa", "ris", **last)
    assert (done.text, done.problem, done.cached_tokens) == ("Paris", "", cached)


def test_a_text_without_an_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MOST_TEXT", 9)
    assert "more than 9 characters" in timed("word ", "word ").problem
