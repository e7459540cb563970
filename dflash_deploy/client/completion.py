"""What an endpoint answers: one completion, one served name, and the error of an answer that is none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dflash_deploy.serve.engines.counters import SpecCounters


class EndpointError(Exception):
    """Raised when a request brought no answer of the expected shape; `status` is the HTTP status, if there was one.

    `silent` says that the endpoint was waited for in vain: whatever is asked next is likely to wait as long.
    """

    def __init__(self, message: str, *, status: int | None = None, silent: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.silent = silent


@dataclass(frozen=True)
class ToolCall:
    """A call that the model wants made; `arguments` is the JSON text as it came."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Completion:
    """One completion. `chunks` counts streamed pieces, 1 where it came whole; times in seconds from the request on.

    `logprobs` is what the API calls so, where it was asked for. Of a stream, `completion_tokens` is 0 where its usage
    did not come, and `ended` says whether [DONE] did. `drafted` are the drafts of this answer, which llama.cpp tells.
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
        """Completion tokens over the time of the whole request, prefill included."""
        return self.completion_tokens / self.seconds


@dataclass(frozen=True)
class ServedModel:
    """One served name, what the engine says it stands for, and its longest sequence in tokens where it says so."""

    name: str
    root: str | None
    max_model_len: int | None


@contextmanager
def expected_shape(source: str) -> Iterator[None]:
    """An answer that is not what the API promises is an EndpointError, whatever is missing in it."""
    try:
        yield
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as problem:
        raise EndpointError(f"{source} brought something unexpected: {type(problem).__name__}: {problem}") from None


def read_completion(said: Mapping[str, Any], seconds: float) -> Completion:
    """The answer in the body of a chat completion that came whole, after so many seconds."""
    choice = said["choices"][0]
    message = choice["message"]
    return Completion(
        text=message["content"] or "",
        finish_reason=choice["finish_reason"],
        completion_tokens=said["usage"]["completion_tokens"],
        seconds=seconds,
        logprobs=choice.get("logprobs"),
        prompt_tokens=said["usage"].get("prompt_tokens", 0),
        id=said.get("id", ""),
        reasoning=_thought(message),
        tool_calls=tuple(_tool_calls(message)),
        drafted=_drafted(said.get("timings") or {}),
    )


def _thought(message: Mapping[str, Any]) -> str:
    """What was thought, where the engine keeps it apart: vLLM calls it `reasoning`, others `reasoning_content`."""
    return message.get("reasoning") or message.get("reasoning_content") or ""


def _tool_calls(message: Mapping[str, Any]) -> Iterator[ToolCall]:
    for call in message.get("tool_calls") or ():
        yield ToolCall(call["function"]["name"], call["function"]["arguments"])


def _drafted(timings: Mapping[str, Any]) -> SpecCounters | None:
    """The drafts of one answer of llama.cpp (server-common.cpp, b11434), which has them where any was made.

    It does not tell the steps. Each brings the accepted tokens and one of the target's own, and the prompt brings one
    before them all, so the steps are the rest (on the tiny pair 190 - 165 - 1, and 168 draft tokens are 24 times 7).
    """
    if "draft_n" not in timings:
        return None
    accepted = int(timings["draft_n_accepted"])
    return SpecCounters(max(int(timings["predicted_n"]) - accepted - 1, 1), int(timings["draft_n"]), accepted)
