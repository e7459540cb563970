"""Let the target read an answer again, without drafts: which token does it prefer at each place of the answer?

No engine has a field that turns speculative decoding off for one request (vllm-project/vllm#55412, closed; llama.cpp's
`speculative.n_max` is compiled out, #23052; sgl-project/sglang#30263). But the first token of an answer has no drafts:
it follows from the prompt. So prompt and answer are sent as a prompt, in tokens.

- `echo` (vLLM, SGLang): one request returns the log-probabilities of all tokens of its prompt.
- `tokens` (llama.cpp): one request of one token for each place. The server keeps the state of the request before, so
  each one computes one token, as decoding without drafts does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from dflash_deploy.client.answers import (
    AppliedTemplate,
    ChatAnswer,
    Completion,
    EchoedAnswer,
    EndpointError,
    NativeAnswer,
    Tokenized,
    completion_of,
    drafted_in,
    expected_shape,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dflash_deploy.client.endpoint import Endpoint
    from dflash_deploy.intake.answers import ForeignDocument
    from dflash_deploy.serve.engines.base import RereadingMethod

    D = TypeVar("D", bound=ForeignDocument)

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
NATIVE = "/completion"

# vLLM takes penalties from the model's generation_config.json; with one, greedy is not the most likely token.
OPENAI_GREEDY = {"temperature": 0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}

# The same for llama.cpp, whose defaults are arguments of the server.
NATIVE_GREEDY = {
    "temperature": 0,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
    "xtc_probability": 0.0,
    "mirostat": 0,
}

# The most likely tokens that are compared; one that is not among them is at least as far behind as the last.
CANDIDATES = 5

SLOT = 0  # the sequence of llama.cpp that reads: another one may hold the state that the drafts have left behind


@dataclass(frozen=True)
class AnswerInTokens:
    """A greedy answer with drafts, and the tokens of its prompt and of itself."""

    completion: Completion
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True)
class TokenRead:
    """How far a token of an answer is behind the one that the target prefers there.

    `behind` is the natural logarithm of the ratio of their probabilities, 0 if the target prefers this token.
    """

    behind: float
    preferred: str


class Rereader(Protocol):
    """One way to read an answer again. Raises EndpointError; its `status` is 4xx if the endpoint refuses."""

    def ask(self, endpoint: Endpoint, question: str, *, max_tokens: int) -> AnswerInTokens:
        """Ask one question, greedy, with drafts, and return the answer in tokens."""

    def read(self, endpoint: Endpoint, answer: AnswerInTokens) -> list[TokenRead]:
        """Return what the target prefers at each place of the answer."""


def _post(endpoint: Endpoint, path: str, body: Mapping[str, object], kind: type[D]) -> D:
    with expected_shape(f"POST {path}"):
        return endpoint.send("POST", path, body).document(kind)


class _Echo:
    """vLLM and SGLang: the log-probabilities of a prompt."""

    def ask(self, endpoint: Endpoint, question: str, *, max_tokens: int) -> AnswerInTokens:
        body = endpoint.question(question, max_tokens, {**OPENAI_GREEDY, "return_token_ids": True})
        said = _post(endpoint, CHAT, body, ChatAnswer)
        prompt, answer = said.prompt_token_ids or said.choices[0].prompt_token_ids, said.choices[0].token_ids
        if prompt is None or answer is None:
            raise EndpointError("the endpoint does not list the tokens of an answer", status=400)
        return AnswerInTokens(completion_of(said, 0.0), tuple(prompt), tuple(answer))

    def read(self, endpoint: Endpoint, answer: AnswerInTokens) -> list[TokenRead]:
        read = [*answer.prompt, *answer.answer]
        body = {"model": endpoint.model, "prompt": read, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
        said = _post(endpoint, COMPLETIONS, body, EchoedAnswer).choices[0].logprobs
        with expected_shape(f"POST {COMPLETIONS} with echo"):
            places = range(len(answer.prompt), len(read))
            return [_read(said.top_logprobs[place], said.token_logprobs[place]) for place in places]


def _read(likely: Mapping[str, float] | None, logprob: float | None) -> TokenRead:
    if not likely or logprob is None:
        raise ValueError("a token has no log-probability")
    best = max(likely, key=lambda token: likely[token])
    return TokenRead(max(likely[best] - logprob, 0.0), best)


class _Tokens:
    """llama.cpp and its fork: one token for each place."""

    def ask(self, endpoint: Endpoint, question: str, *, max_tokens: int) -> AnswerInTokens:
        text = _post(endpoint, "/apply-template", endpoint.question(question, max_tokens, {}), AppliedTemplate).prompt
        words = {"content": text, "add_special": True, "parse_special": True}
        prompt = _post(endpoint, "/tokenize", words, Tokenized).tokens
        said = _complete(endpoint, prompt, n_predict=max_tokens)
        completion = Completion(
            said.content, "", len(said.tokens), 0.0, prompt_tokens=len(prompt), drafted=drafted_in(said.timings)
        )
        return AnswerInTokens(completion, tuple(prompt), tuple(said.tokens))

    def read(self, endpoint: Endpoint, answer: AnswerInTokens) -> list[TokenRead]:
        return list(self._each(endpoint, answer))

    def _each(self, endpoint: Endpoint, answer: AnswerInTokens) -> Iterator[TokenRead]:
        for place, token in enumerate(answer.answer):
            prompt = [*answer.prompt, *answer.answer[:place]]
            more = {"n_predict": 1, "n_probs": CANDIDATES, "id_slot": SLOT, "cache_prompt": place > 0}
            said = _complete(endpoint, prompt, **more)
            with expected_shape(f"POST {NATIVE} with n_probs"):
                likely = said.completion_probabilities[0].top_logprobs
                rated = {one.id: one.logprob for one in likely}
                lead = likely[0].logprob - rated.get(token, likely[-1].logprob)
                yield TokenRead(max(lead, 0.0), likely[0].token)


def _complete(endpoint: Endpoint, prompt: Sequence[int], **more: object) -> NativeAnswer:
    body = {"prompt": prompt, **NATIVE_GREEDY, "return_tokens": True, "cache_prompt": False, **more}
    return _post(endpoint, NATIVE, body, NativeAnswer)


# Each way by its name in `Engine.rereads`.
REREADERS: Mapping[RereadingMethod, Rereader] = {"echo": _Echo(), "tokens": _Tokens()}
