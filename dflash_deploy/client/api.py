"""The OpenAI API of one endpoint."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import httpx

from dflash_deploy.client.announced import CONNECT_TIMEOUT, announce
from dflash_deploy.client.completion import (
    Completion,
    EndpointError,
    ServedModel,
    completion_of,
    expected_shape,
    refusal_of,
    unanswered,
)
from dflash_deploy.client.connection import Connection
from dflash_deploy.client.documents import ApiDescription, ChatAnswer, ChatChunk, ModelList
from dflash_deploy.client.events import beginning_of, read_events
from dflash_deploy.client.images import image_and_question
from dflash_deploy.client.key_usage import KeyUsage, read_key_usage
from dflash_deploy.client.metrics import Metrics, read_metrics
from dflash_deploy.intake import Invalid
from dflash_deploy.intake.answers import fetch_answer, is_success, open_stream, read_lines, within
from dflash_deploy.redact import Secret
from dflash_deploy.serve.engines.counters import SpecCounters

STREAM_TIMEOUT = 900.0
"""Seconds for a whole stream, of which each event has to arrive within ANSWER_TIMEOUT."""

CHAT = "/v1/chat/completions"


class Endpoint(Connection):
    """A served model: what it answers, and what it says of itself."""

    def alive(self) -> bool:
        """Return whether GET /health returns 200. That means the process listens, not that it is ready."""
        try:
            request = self._client.build_request("GET", "/health", timeout=CONNECT_TIMEOUT)
            return fetch_answer(self._client, request, seconds=CONNECT_TIMEOUT).status == httpx.codes.OK
        except (httpx.HTTPError, Invalid):
            return False

    def models(self) -> list[str]:
        """Return the served model names."""
        return [served.name for served in self.served()]

    def served(self) -> list[ServedModel]:
        """Return each name of GET /v1/models; only vLLM reports the weights' path and the length."""
        answer = self.send("GET", "/v1/models")
        with expected_shape("GET /v1/models"):
            said = answer.document(ModelList)
        return [ServedModel(name, one.root, one.max_model_len) for one in said.data for name in one.names]

    def paths(self) -> list[str]:
        """Return the paths in the server's OpenAPI description; empty if it has none."""
        try:
            answer = self.send("GET", "/openapi.json")
            answer.json()
        except (EndpointError, Invalid):
            return []
        with expected_shape("GET /openapi.json"):
            said = answer.document(ApiDescription)
        return said.own_paths

    def chat(self, content: str | Sequence[Mapping[str, object]], *, max_tokens: int, **options: object) -> Completion:
        """Ask one question with temperature 0 and thinking off; `options` are more fields of the request."""
        return self.complete(self.question(content, max_tokens, options))

    def complete(self, body: Mapping[str, object]) -> Completion:
        """Send the body of a chat completion unchanged."""
        started = time.monotonic()
        answer = self.send("POST", CHAT, body)
        seconds = time.monotonic() - started
        with expected_shape("POST /v1/chat/completions"):
            return completion_of(answer.document(ChatAnswer), seconds)

    def stream(self, content: str, *, max_tokens: int, **options: object) -> Completion:
        """Ask one question and stream the answer."""
        asked = self.question(content, max_tokens, options)
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
        started, finish, tokens, ended = time.monotonic(), "", 0, False
        arrivals, chunks = list[float](), list[str]()
        with self.events(asked) as events:
            for event in events:
                if event is None:
                    ended = True
                    continue
                tokens = event.usage.completion_tokens if event.usage else tokens
                for choice in event.choices or ():
                    finish = choice.finish_reason or finish
                    if text := choice.delta.content:
                        arrivals.append(time.monotonic() - started)
                        chunks.append(text)
        first, last = (arrivals[0], arrivals[-1]) if arrivals else (None, None)
        return Completion(
            "".join(chunks), finish, tokens, time.monotonic() - started, first, last, len(chunks), ended=ended
        )

    @contextmanager
    def events(self, body: Mapping[str, object]) -> Iterator[Iterator[ChatChunk | None]]:
        """Yield the events of a streamed chat completion, `None` for [DONE]; leaving the block closes the connection.

        Raises EndpointError if the stream is refused, breaks off, exceeds a limit, or is not a stream of events.
        """
        try:
            request = self._client.build_request("POST", CHAT, json=dict(body))
            response = open_stream(self._client, request, seconds=self._timeout)
            try:
                with expected_shape("the stream"):
                    lines = read_lines(response, pause=self._timeout, seconds=STREAM_TIMEOUT)
                    if not is_success(response.status_code):
                        raise refusal_of("POST", CHAT, response.status_code, beginning_of(lines))
                    kind = response.headers.get("content-type", "missing")
                    if not kind.startswith("text/event-stream"):
                        raise EndpointError(f"the stream has content type `{kind[:80]}`, expected text/event-stream")
                    yield read_events(lines)
            finally:
                response.close()
        except httpx.HTTPError as problem:
            raise unanswered("the stream broke off", problem) from problem

    def ask_image(self, png: bytes, question: str, *, max_tokens: int, **options: object) -> Completion:
        """Ask about an image, sent as a data URI."""
        return self.chat(image_and_question(png, question), max_tokens=max_tokens, **options)

    def status_without_key(self, method: str, path: str) -> int:
        """Return the HTTP status of a request without a key."""
        return self.status(method, path, key=Secret(""))

    def status(self, method: str, path: str, *, key: Secret | None = None) -> int:
        """Return the HTTP status of an empty request, with `key` instead of the endpoint's key if it is given."""
        sent = self._key if key is None else key
        headers = {"Authorization": f"Bearer {sent.reveal()}"} if sent else {}
        try:
            request = self._keyless.build_request(method, path, json={} if method == "POST" else None, headers=headers)
            return fetch_answer(self._keyless, request, seconds=CONNECT_TIMEOUT).status
        except Invalid as problem:
            raise EndpointError(f"{method} {path} returned an unexpected answer: it {problem}") from None
        except httpx.HTTPError as problem:
            failed = unanswered(f"{method} {path} got no answer", problem)
            # the timeout is short here, so this is silence only if /health does not answer either
            failed.silent = failed.silent and not self.alive()
            raise failed from problem

    def counters(self) -> SpecCounters:
        """Return the current counters of speculative decoding."""
        return self.metrics().drafts

    def metrics(self) -> Metrics:
        """Return the engine's current counters. Raises EndpointError if /metrics is not a metrics text."""
        answer = self.send("GET", "/metrics")
        with expected_shape("GET /metrics"):
            return read_metrics(answer.text)

    def key_usage(self) -> list[KeyUsage]:
        """Return what each key used, by its name. Raises EndpointError as `metrics`; empty without our gateway."""
        answer = self.send("GET", "/metrics")
        with expected_shape("GET /metrics"):
            return read_key_usage(answer.text)

    def status_of_announced(self, size: int) -> int | None:
        """Announce a chat completion of `size` bytes and return its HTTP status; `None` if the server waits for it."""
        url = httpx.URL(f"{self.url}{CHAT}")
        try:
            return within(3 * CONNECT_TIMEOUT, lambda abandoned: announce(url, self._authorization, size, self._trust))
        except (TimeoutError, httpx.ReadTimeout):
            return None
        except (OSError, ValueError, http.client.HTTPException) as problem:
            raise EndpointError(
                f"announcing a body of {size} bytes failed: {str(problem)[:200] or type(problem).__name__}"
            ) from None

    def question(
        self, content: str | Sequence[Mapping[str, object]], max_tokens: int, options: Mapping[str, object]
    ) -> dict[str, object]:
        """Return the body of a chat completion that asks one question, as `chat` sends it."""
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "chat_template_kwargs": {"enable_thinking": False},
            **options,
        }
