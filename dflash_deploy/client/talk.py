"""A question with text and pictures, its answer as it arrives, and what the answer took.

The tokens that one step of the target yields arrive together: vLLM and SGLang send them in one chunk. llama.cpp sends a
chunk for each token, and with `timings_per_token` all chunks of a step have the same `predicted_ms`
(server-context.cpp, b11549: the time is taken once for a step, before its tokens are sent).
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dflash_deploy.client.answers import ChatChunk, EndpointError, Timings, drafted_in
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.serve.engines import ENGINES
from dflash_deploy.serve.engines.counters import SpecCounters

Message = Mapping[str, object]


@dataclass(frozen=True)
class EncodedPicture:
    """An encoded picture: its media type, such as `image/png`, and its bytes."""

    media_type: str
    content: bytes

    @property
    def part(self) -> Mapping[str, object]:
        """The part of a message that holds it, as a data URI."""
        encoded = base64.b64encode(self.content).decode("ascii")
        return {"type": "image_url", "image_url": {"url": f"data:{self.media_type};base64,{encoded}"}}


def user_message(text: str, pictures: Sequence[EncodedPicture] = ()) -> Message:
    """The message of a user: text, or pictures and text."""
    if not pictures:
        return {"role": "user", "content": text}
    return {"role": "user", "content": [*(picture.part for picture in pictures), {"type": "text", "text": text}]}


@dataclass(frozen=True)
class TalkChunk:
    """A part of an answer, or of the `thinking` before it. Chunks with the same `step` came from one step."""

    text: str
    thinking: bool
    step: int


SEVERAL = 3  # steps from which on their arrival shows a speed: the chunks of fewer arrive almost at once


@dataclass(frozen=True)
class Figures:
    """What one answer took. Times are in seconds since the request; `None` is what the engine does not report.

    `tokens_per_second` is without the prefill: what llama.cpp says, else the tokens after the first step by the time
    since then, from SEVERAL steps on. `acceptance_length` is in tokens per step.
    """

    tokens: int | None
    seconds: float
    first_token_seconds: float | None
    tokens_per_second: float | None
    acceptance_length: float | None
    finish_reason: str


class Talk:
    """One request for a streamed answer. `chunks` yields the answer once; `figures` are known after it."""

    def __init__(
        self,
        endpoint: Endpoint,
        messages: Sequence[Message],
        *,
        max_tokens: int | None = None,
        thinking: bool | None = None,
    ) -> None:
        """`thinking`: whether the template asks the model to think; `None` leaves it to the deployment."""
        self._endpoint = endpoint
        self._started = time.monotonic()
        self._before, engine = _counters(endpoint)
        self._body: dict[str, object] = {
            "model": endpoint.model,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"max_tokens": max_tokens} if max_tokens is not None else {}),
            **({"chat_template_kwargs": {"enable_thinking": thinking}} if thinking is not None else {}),
            # other servers may refuse a field that they do not know
            **(ENGINES[engine].step_times if engine else {}),
        }
        self._arrivals: list[float] = []
        self._first_step = 0
        self._tokens: int | None = None
        self._timings: Timings | None = None
        self._finish = ""
        self._last_time: float | None = None
        self._step = -1

    def chunks(self) -> Iterator[TalkChunk]:
        """Yield the answer as it arrives. Raises EndpointError if it is refused, breaks off or is not an answer."""
        self._started, ended = time.monotonic(), False
        with self._endpoint.events(self._body) as events:
            for event in events:
                if event is None:
                    ended = True
                    continue
                yield from self._read(event)
        if not ended:
            raise EndpointError("the stream ended before the answer did")

    def _read(self, event: ChatChunk) -> Iterator[TalkChunk]:
        self._timings = event.timings or self._timings
        self._tokens = event.usage.completion_tokens if event.usage else self._tokens
        for choice in event.choices or ():
            self._finish = choice.finish_reason or self._finish
            thought = choice.delta.reasoning or choice.delta.reasoning_content
            if not thought and not choice.delta.content:
                continue
            self._arrive(event.timings)
            if thought:
                yield TalkChunk(thought, thinking=True, step=self._step)
            if choice.delta.content:
                yield TalkChunk(choice.delta.content, thinking=False, step=self._step)

    def _arrive(self, timings: Timings | None) -> None:
        """Note when a chunk arrived, and whether it begins a step."""
        at = timings.predicted_ms if timings else None
        if at is None or at != self._last_time:
            self._step += 1
        self._last_time = at
        self._arrivals.append(time.monotonic() - self._started)
        self._first_step += self._step == 0

    def figures(self) -> Figures:
        """What the answer took, once its chunks have been read; of an answer that was left, until then."""
        first = self._arrivals[0] if self._arrivals else None
        said = self._timings.predicted_n if self._timings else None
        tokens = said if self._tokens is None else self._tokens
        seconds = time.monotonic() - self._started
        return Figures(tokens, seconds, first, self._rate(tokens), self._acceptance_length(), self._finish)

    @property
    def rate(self) -> float | None:
        """Tokens a second so far; `None` until they can be known."""
        return self._rate(self._tokens)

    def _rate(self, tokens: int | None) -> float | None:
        """Tokens a second; `None` if nothing shows them."""
        if self._timings is not None and self._timings.predicted_ms > 0:
            return self._timings.predicted_n / self._timings.predicted_ms * 1000
        if tokens is None or self._step < SEVERAL:
            return None
        return max(tokens - self._first_step, 0) / (self._arrivals[-1] - self._arrivals[0])

    def _acceptance_length(self) -> float | None:
        """That of this answer; where only the engine's counters tell, that of all answers in its time."""
        if self._timings is not None:
            drafted = drafted_in(self._timings)
            return drafted.acceptance_length if drafted else None
        if self._before is None:
            return None
        after, _ = _counters(self._endpoint)
        return None if after is None else (after - self._before).acceptance_length


def _counters(endpoint: Endpoint) -> tuple[SpecCounters | None, str]:
    """The counters of drafts and the engine's name; nothing if the endpoint, or its key, does not show them."""
    try:
        metrics = endpoint.metrics()
    except EndpointError:
        return None, ""
    return metrics.drafts, metrics.engine or ""
