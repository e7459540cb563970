"""The events of one streamed chat completion."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any

import httpx
from pydantic import AliasChoices, Field

from dflash_deploy.intake.answers import ForeignDocument, read_document
from dflash_deploy.intake.parse import Invalid
from dflash_deploy.serve.engines.counters import SpecCounters


def read_events(lines: Iterator[str]) -> Iterator[ChatChunk | None]:
    """Yield each server-sent event, `None` for [DONE]. Raises Invalid, and EndpointError for an error of the engine."""
    for line in lines:
        data = line.removeprefix("data:").strip()
        if line.startswith("data:") and data == "[DONE]":
            yield None
        elif line.startswith("data:"):
            event = read_document(data, ChatChunk)
            if event.error is not None:
                # an engine that dies during a stream cannot change the status any more
                raise EndpointError(f"the stream ended with an error: {str(event.error)[:SHOWN]}")
            if event.choices is None:
                raise Invalid("has an event without choices")
            yield event


def beginning_of(lines: Iterator[str]) -> str:
    """Return the first lines of a refusal."""
    said = ""
    for line in lines:
        said += f"{line}\n"
        if len(said) > SHOWN:
            break
    return said


SHOWN = 300  # characters of an answer that an error shows

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
    refused = "the API key is refused: " if status == HTTPStatus.UNAUTHORIZED else ""
    return EndpointError(f"{refused}{method} {path} answered {status}: {said}", status=status)


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

    `cached_tokens` of the prompt were in the prefix cache; `None` if the server does not say it. `logprobs` is the
    API's field of that name, if requested. For a stream, `completion_tokens` is 0 if usage is missing, and `ended`
    is whether [DONE] came. `drafted` are the drafts of this answer, which only llama.cpp reports.
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
    cached_tokens: int | None = None

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
        cached_tokens=details.cached_tokens if (details := said.usage.prompt_tokens_details) else None,
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


_PATH = re.compile(r"/(?!/)[!-~]{0,500}")  # paths that are asked for; `//host` would be another server
Count = Annotated[int, Field(ge=0, lt=2**53)]  # tokens
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Tokens = Annotated[list[TokenId], Field(max_length=1_000_000)]  # A text in tokens, by their numbers in the vocabulary


class Function(ForeignDocument):
    """The function of a tool call. `arguments` is JSON text."""

    name: str
    arguments: str


class Call(ForeignDocument):
    """A tool call."""

    function: Function


class AnswerMessage(ForeignDocument):
    """The message of a choice. vLLM names the reasoning content `reasoning`, other engines `reasoning_content`."""

    content: str | None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Call] | None = None


class AnswerChoice(ForeignDocument):
    """One choice of an answer. For `return_token_ids` vLLM and SGLang list its tokens, SGLang also the prompt's."""

    message: AnswerMessage
    finish_reason: str | None
    logprobs: Mapping[str, Any] | None = None
    token_ids: Annotated[Tokens | None, Field(validation_alias=AliasChoices("token_ids", "response_token_ids"))] = None
    prompt_token_ids: Tokens | None = None


class PromptDetails(ForeignDocument):
    """Tokens of a prompt that were in the prefix cache; vLLM and SGLang report them only if they are asked to."""

    cached_tokens: Count | None = None


class Usage(ForeignDocument):
    """Token counts of an answer."""

    completion_tokens: Count
    prompt_tokens: Count | None = None
    prompt_tokens_details: PromptDetails | None = None


class Timings(ForeignDocument):
    """Drafts and time of an answer of llama.cpp. `predicted_ms` ends with a step: its tokens have the same."""

    draft_n: Count | None = None
    draft_n_accepted: Count = 0
    predicted_n: Count = 0
    predicted_ms: float = 0.0


class ChatAnswer(ForeignDocument):
    """The body of POST /v1/chat/completions."""

    choices: Annotated[list[AnswerChoice], Field(min_length=1)]
    usage: Usage
    id: str | None = None
    timings: Timings | None = None
    prompt_token_ids: Tokens | None = None


class Delta(ForeignDocument):
    """The text that a chunk adds. The names of the reasoning are those of a whole answer."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class ChunkChoice(ForeignDocument):
    """One choice of a chunk."""

    delta: Delta
    finish_reason: str | None = None


class ChatChunk(ForeignDocument):
    """One event of a streamed chat completion."""

    choices: list[ChunkChoice] | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    error: Any = None


class ListedModel(ForeignDocument):
    """One model of GET /v1/models; only vLLM states `root` and `max_model_len`.

    llama.cpp lists a model once, by the first of its names in the order of the alphabet, with all names as `aliases`.
    """

    id: str
    aliases: Annotated[list[str], Field(max_length=1000)] | None = None
    root: str | None = None
    max_model_len: Count | None = None

    @property
    def names(self) -> list[str]:
        """Return the names under which it can be requested, each once."""
        return list(dict.fromkeys((self.id, *(self.aliases or ()))))


class ModelList(ForeignDocument):
    """The body of GET /v1/models."""

    data: Annotated[list[ListedModel], Field(max_length=10_000)]


class ApiDescription(ForeignDocument):
    """The body of GET /openapi.json."""

    paths: Annotated[Mapping[Annotated[str, Field(max_length=1000)], Any], Field(max_length=1000)]

    @property
    def own_paths(self) -> list[str]:
        """Return the paths of this server; any other one could be the address of another server."""
        return sorted(path for path in self.paths if _PATH.fullmatch(path))


class EchoedLogprobs(ForeignDocument):
    """The logprobs of a text completion with `echo`, one entry for each token; the first one has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[Mapping[str, float] | None]


class EchoedChoice(ForeignDocument):
    """One choice of a text completion with `echo`."""

    logprobs: EchoedLogprobs


class EchoedAnswer(ForeignDocument):
    """The body of POST /v1/completions with `echo` and `logprobs`."""

    choices: Annotated[list[EchoedChoice], Field(min_length=1)]


class AppliedTemplate(ForeignDocument):
    """The body of POST /apply-template (llama.cpp)."""

    prompt: str


class Tokenized(ForeignDocument):
    """The body of POST /tokenize (llama.cpp)."""

    tokens: Tokens


class RatedToken(ForeignDocument):
    """A token that could have come (llama.cpp)."""

    id: TokenId
    token: str
    logprob: float


class Generated(ForeignDocument):
    """A generated token, with the most likely ones (llama.cpp). The list is empty for an accepted draft token."""

    top_logprobs: list[RatedToken]


class NativeAnswer(ForeignDocument):
    """The body of POST /completion (llama.cpp)."""

    content: str
    tokens: Tokens
    timings: Timings | None = None
    completion_probabilities: Annotated[list[Generated], Field(default_factory=list)]
