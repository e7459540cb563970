"""The JSON documents of the OpenAI API, as far as they are read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from dflash_deploy.intake.answers import ForeignDocument

_PATH = re.compile(r"/(?!/)[!-~]{0,500}")
"""Paths that are asked for; `//host` would be another server."""

Count = Annotated[int, Field(ge=0, lt=2**53)]
"""Tokens."""

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Tokens = Annotated[list[TokenId], Field(max_length=1_000_000)]
"""A text in tokens, by their numbers in the vocabulary."""


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
    """One choice of an answer. Only vLLM lists the tokens, for `return_token_ids`."""

    message: AnswerMessage
    finish_reason: str | None
    logprobs: Mapping[str, Any] | None = None
    token_ids: Tokens | None = None


class Usage(ForeignDocument):
    """Token counts of an answer."""

    completion_tokens: Count
    prompt_tokens: Count | None = None


class Timings(ForeignDocument):
    """The drafts of an answer of llama.cpp."""

    draft_n: Count | None = None
    draft_n_accepted: Count = 0
    predicted_n: Count = 0


class ChatAnswer(ForeignDocument):
    """The body of POST /v1/chat/completions."""

    choices: Annotated[list[AnswerChoice], Field(min_length=1)]
    usage: Usage
    id: str | None = None
    timings: Timings | None = None
    prompt_token_ids: Tokens | None = None


class Delta(ForeignDocument):
    """The text that a chunk adds."""

    content: str | None = None


class ChunkChoice(ForeignDocument):
    """One choice of a chunk."""

    delta: Delta
    finish_reason: str | None = None


class ChatChunk(ForeignDocument):
    """One event of a streamed chat completion."""

    choices: list[ChunkChoice] | None = None
    usage: Usage | None = None
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
