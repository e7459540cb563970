"""Answers of an endpoint: a completion, a served model, and the error of a request without a valid answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from dflash_deploy.client.documents import ChatAnswer, Timings
from dflash_deploy.intake import Invalid
from dflash_deploy.serve.engines.counters import SpecCounters

SHOWN = 300
"""Characters of an answer that an error shows."""

# Docker's proxy accepts and closes while nothing listens in the container
_UNCONNECTED = (httpx.NetworkError, httpx.ConnectTimeout, httpx.RemoteProtocolError)


class EndpointError(Exception):
    """Raised when a request has no answer of the expected shape; `status` is the HTTP status, if there is one.

    `silent`: the request timed out without an answer, and the next request is likely to wait as long. `unconnected` is
    why the server closed the connection or did not accept one; empty if it answered.
    """

    def __init__(self, message: str, *, status: int | None = None, silent: bool = False, unconnected: str = "") -> None:
        # what a server says may have line ends; an error is one line
        super().__init__(" ".join(message.splitlines()))
        self.status = status
        self.silent = silent
        self.unconnected = unconnected


def refusal_of(method: str, path: str, status: int, text: str) -> EndpointError:
    """Return the error of a request whose status is not 2xx."""
    said = " ".join(text[: 10 * SHOWN].split())[:SHOWN]
    return EndpointError(f"{method} {path} answered {status}: {said}", status=status)


def unanswered(what: str, problem: httpx.HTTPError) -> EndpointError:
    """Return the error of a request without an answer."""
    said = str(problem)[:SHOWN] or type(problem).__name__
    unconnected = said if isinstance(problem, _UNCONNECTED) else ""
    return EndpointError(f"{what}: {said}", silent=isinstance(problem, httpx.ReadTimeout), unconnected=unconnected)


@dataclass(frozen=True)
class ToolCall:
    """A tool call of the model; `arguments` is the JSON text as received."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Completion:
    """One completion. `chunks` counts streamed chunks, 1 without streaming; times are in seconds since the request.

    `logprobs` is the API's field of that name, if requested. For a stream, `completion_tokens` is 0 if usage is
    missing, and `ended` is whether [DONE] came. `drafted` are the drafts of this answer, which only llama.cpp reports.
    """

    text: str
    finish_reason: str
    completion_tokens: int
    seconds: float
    first_token_seconds: float | None = None
    last_token_seconds: float | None = None
    chunks: int = 1
    logprobs: Any = None
    prompt_tokens: int = 0
    id: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    ended: bool = True
    drafted: SpecCounters | None = None

    @property
    def tokens_per_second(self) -> float:
        """Completion tokens per second of the whole request, prefill included."""
        return self.completion_tokens / self.seconds


@dataclass(frozen=True)
class ServedModel:
    """A served model name, the weights it refers to, and the longest sequence in tokens; `None` if not reported."""

    name: str
    root: str | None
    max_model_len: int | None


@contextmanager
def expected_shape(source: str) -> Iterator[None]:
    """Turn errors of reading an answer without the API's fields into an EndpointError."""
    try:
        yield
    except Invalid as problem:
        raise EndpointError(f"{source} returned an unexpected answer: it {problem}") from None
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, ArithmeticError) as problem:
        said = str(problem)[:200]
        raise EndpointError(f"{source} returned an unexpected answer: {type(problem).__name__}: {said}") from None


def completion_of(said: ChatAnswer, seconds: float) -> Completion:
    """Return the completion in an answer without streaming, which took `seconds`."""
    choice = said.choices[0]
    message = choice.message
    return Completion(
        text=message.content or "",
        finish_reason=choice.finish_reason or "",
        completion_tokens=said.usage.completion_tokens,
        seconds=seconds,
        logprobs=choice.logprobs,
        prompt_tokens=said.usage.prompt_tokens or 0,
        id=said.id or "",
        reasoning=message.reasoning or message.reasoning_content or "",
        tool_calls=tuple(ToolCall(call.function.name, call.function.arguments) for call in message.tool_calls or ()),
        drafted=drafted_in(said.timings),
    )


def drafted_in(timings: Timings | None) -> SpecCounters | None:
    """Return the drafts in an answer of llama.cpp (server-common.cpp, b11434); `None` if it has none.

    llama.cpp does not report the steps. Each step yields its accepted tokens and one token of the target, and prefill
    yields one token. So the steps are the rest (tiny pair: 190 - 165 - 1, and 168 draft tokens are 24 times 7).
    """
    if timings is None or timings.draft_n is None:
        return None
    accepted = timings.draft_n_accepted
    return SpecCounters(max(timings.predicted_n - accepted - 1, 1), timings.draft_n, accepted)
