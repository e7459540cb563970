"""The OpenAI API of one endpoint, for one client at a time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from dflash_deploy.client.images import data_uri
from dflash_deploy.client.metrics import SpecCounters, read_counters
from dflash_deploy.redact import Secret

CONNECT_TIMEOUT = 5.0
ANSWER_TIMEOUT = 180.0
"""Seconds for a whole answer: the first request after a start may compile kernels for more than 30 s."""

QUEUE_TIMEOUT = 900.0
"""Seconds without a byte where many requests run: they wait for each other before their first token."""


class EndpointError(Exception):
    """Raised when a request brought no answer of the expected shape; `status` is the HTTP status, if there was one."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Answer:
    """One completion. `chunks` counts streamed pieces, 1 where it came whole; times in seconds.

    `logprobs` is what the API calls so, where it was asked for.
    """

    text: str
    finish_reason: str
    completion_tokens: int
    seconds: float
    first_token_seconds: float | None = None
    chunks: int = 1
    logprobs: Any = None

    @property
    def tokens_per_second(self) -> float:
        """Completion tokens over the time of the whole request, prefill included."""
        return self.completion_tokens / self.seconds


class Endpoint:
    """A served model. Use as a context manager; `model` is the served name."""

    def __init__(self, url: str, key: Secret, model: str, *, timeout: float = ANSWER_TIMEOUT) -> None:
        self.url = url.rstrip("/")
        self.model = model
        headers = {"Authorization": f"Bearer {key.reveal()}"} if key else {}
        limits = httpx.Timeout(timeout, connect=CONNECT_TIMEOUT)
        # an endpoint of this machine is never reached through a proxy
        self._client = httpx.Client(base_url=self.url, headers=headers, timeout=limits, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()

    def many(self, connections: int) -> httpx.AsyncClient:
        """A client of the same endpoint, with the same key, for so many requests at the same time."""
        return httpx.AsyncClient(
            base_url=self.url,
            headers={**self._client.headers, "Content-Type": "application/json", "Accept-Encoding": "identity"},
            timeout=httpx.Timeout(QUEUE_TIMEOUT, connect=CONNECT_TIMEOUT),
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            trust_env=False,
        )

    def alive(self) -> bool:
        """Whether GET /health answers 200: the process listens, which is not yet readiness."""
        try:
            return self._client.get("/health", timeout=CONNECT_TIMEOUT).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def models(self) -> list[str]:
        """The names under which models are served."""
        said = _json(self._send("GET", "/v1/models"))
        with _expected_shape("GET /v1/models"):
            return [entry["id"] for entry in said["data"]]

    def chat(self, content: str | Sequence[Mapping[str, object]], *, max_tokens: int, **options: object) -> Answer:
        """Ask one question, greedily, with thinking off where the template knows it; further fields in `options`."""
        return self.complete(self._question(content, max_tokens, options))

    def complete(self, body: Mapping[str, object]) -> Answer:
        """Send the body of a chat completion as it is."""
        started = time.monotonic()
        said = _json(self._send("POST", "/v1/chat/completions", body))
        with _expected_shape("POST /v1/chat/completions"):
            choice = said["choices"][0]
            return Answer(
                text=choice["message"]["content"] or "",
                finish_reason=choice["finish_reason"],
                completion_tokens=said["usage"]["completion_tokens"],
                seconds=time.monotonic() - started,
                logprobs=choice.get("logprobs"),
            )

    def stream(self, content: str, *, max_tokens: int, **options: object) -> Answer:
        """Ask one question and take the answer in pieces, as they are made."""
        asked = self._question(content, max_tokens, options)
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
        started, first, pieces, finish, tokens = time.monotonic(), None, list[str](), "", 0
        try:
            with (
                self._client.stream("POST", "/v1/chat/completions", json=asked) as response,
                _expected_shape("the stream"),
            ):
                if response.is_error:
                    response.read()
                    raise _refusal(response)
                for event in _events(response):
                    tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
                    for choice in event["choices"]:
                        finish = choice.get("finish_reason") or finish
                        if text := choice["delta"].get("content"):
                            first = first or time.monotonic() - started
                            pieces.append(text)
        except httpx.HTTPError as problem:
            raise EndpointError(f"the stream broke off: {_said(problem)}") from problem
        return Answer("".join(pieces), finish, tokens, time.monotonic() - started, first, len(pieces))

    def look(self, png: bytes, question: str, *, max_tokens: int, **options: object) -> Answer:
        """Ask about a picture, sent as a data URI."""
        parts: list[Mapping[str, object]] = [
            {"type": "image_url", "image_url": {"url": data_uri(png)}},
            {"type": "text", "text": question},
        ]
        return self.chat(parts, max_tokens=max_tokens, **options)

    def status_without_key(self, method: str, path: str) -> int:
        """The HTTP status of a request that carries no key."""
        try:
            bare = httpx.request(method, f"{self.url}{path}", json={}, timeout=CONNECT_TIMEOUT, trust_env=False)
        except httpx.HTTPError as problem:
            raise EndpointError(f"{method} {path} brought no answer: {_said(problem)}") from problem
        return bare.status_code

    def counters(self) -> SpecCounters:
        """The counters of speculative decoding as they stand now."""
        return read_counters(self._send("GET", "/metrics").text)

    def _question(
        self, content: str | Sequence[Mapping[str, object]], max_tokens: int, options: Mapping[str, object]
    ) -> dict[str, object]:
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "chat_template_kwargs": {"enable_thinking": False},
            **options,
        }

    def _send(self, method: str, path: str, body: Mapping[str, object] | None = None) -> httpx.Response:
        try:
            response = self._client.request(method, path, json=body)
        except httpx.HTTPError as problem:
            raise EndpointError(f"{method} {path} brought no answer: {_said(problem)}") from problem
        if response.is_error:
            raise _refusal(response)
        return response


def _events(response: httpx.Response) -> Any:
    """The JSON of each server-sent event, up to [DONE]."""
    for line in response.iter_lines():
        data = line.removeprefix("data:").strip()
        if line.startswith("data:") and data != "[DONE]":
            event = json.loads(data)
            if "error" in event:
                # an engine that dies in the middle can no longer change the status
                raise EndpointError(f"the stream ended in an error: {event['error']}")
            yield event


@contextmanager
def _expected_shape(source: str) -> Iterator[None]:
    """An answer that is not what the API promises is an EndpointError, whatever is missing in it."""
    try:
        yield
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as problem:
        raise EndpointError(f"{source} brought something unexpected: {type(problem).__name__}: {problem}") from None


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        raise EndpointError(f"{response.url.path} answered something that is not JSON") from None


def _refusal(response: httpx.Response) -> EndpointError:
    said = " ".join(response.text.split())[:300]
    return EndpointError(
        f"{response.request.method} {response.url.path} answered {response.status_code}: {said}",
        status=response.status_code,
    )


def _said(problem: httpx.HTTPError) -> str:
    return str(problem) or type(problem).__name__
