"""The OpenAI API of one endpoint, for one client at a time."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from dflash_deploy.client.images import data_uri
from dflash_deploy.client.metrics import Metrics, SpecCounters, read_metrics
from dflash_deploy.redact import Secret

CONNECT_TIMEOUT = 5.0
ANSWER_TIMEOUT = 180.0
"""Seconds for a whole answer: the first request after a start may compile kernels for more than 30 s."""

QUEUE_TIMEOUT = 900.0
"""Seconds without a byte where many requests run: they wait for each other before their first token."""


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
class Answer:
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
class Served:
    """One served name, what the engine says it stands for, and its longest sequence in tokens where it says so."""

    name: str
    root: str | None
    max_model_len: int | None


class Endpoint:
    """A served model. Use as a context manager; `model` is the served name."""

    def __init__(
        self, url: str, key: Secret, model: str, *, timeout: float = ANSWER_TIMEOUT, proxies: bool = False
    ) -> None:
        """`proxies` says whether those of the environment are used: an endpoint of this machine needs none."""
        self.url = url.rstrip("/")
        self.model = model
        self._key = key
        headers = {"Authorization": f"Bearer {key.reveal()}"} if key else {}
        limits = httpx.Timeout(timeout, connect=CONNECT_TIMEOUT)
        # a burst is held back by the engine, not by the client's own limit of 100 connections
        pool = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        self._client = httpx.Client(base_url=self.url, headers=headers, timeout=limits, limits=pool, trust_env=proxies)
        self._keyless = httpx.Client(base_url=self.url, timeout=CONNECT_TIMEOUT, trust_env=proxies)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()
        self._keyless.close()

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
        return [served.name for served in self.served()]

    def served(self) -> list[Served]:
        """What is served, as GET /v1/models tells it; vLLM says the weights' path and the length, others less."""
        said = _json(self._send("GET", "/v1/models"))
        with _expected_shape("GET /v1/models"):
            return [Served(one["id"], one.get("root"), one.get("max_model_len")) for one in said["data"]]

    def paths(self) -> list[str]:
        """The paths that the server's own description lists; none where it has no description."""
        try:
            said = _json(self._send("GET", "/openapi.json"))
        except EndpointError:
            return []
        with _expected_shape("GET /openapi.json"):
            return sorted(said["paths"])

    def chat(self, content: str | Sequence[Mapping[str, object]], *, max_tokens: int, **options: object) -> Answer:
        """Ask one question, greedily, with thinking off where the template knows it; further fields in `options`."""
        return self.complete(self._question(content, max_tokens, options))

    def complete(self, body: Mapping[str, object]) -> Answer:
        """Send the body of a chat completion as it is."""
        started = time.monotonic()
        said = _json(self._send("POST", "/v1/chat/completions", body))
        with _expected_shape("POST /v1/chat/completions"):
            choice = said["choices"][0]
            message = choice["message"]
            return Answer(
                text=message["content"] or "",
                finish_reason=choice["finish_reason"],
                completion_tokens=said["usage"]["completion_tokens"],
                seconds=time.monotonic() - started,
                logprobs=choice.get("logprobs"),
                prompt_tokens=said["usage"].get("prompt_tokens", 0),
                id=said.get("id", ""),
                reasoning=_thought(message),
                tool_calls=tuple(_tool_calls(message)),
                drafted=_drafted(said.get("timings") or {}),
            )

    def stream(self, content: str, *, max_tokens: int, **options: object) -> Answer:
        """Ask one question and take the answer in pieces, as they are made."""
        asked = self._question(content, max_tokens, options)
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
        started, finish, tokens, ended = time.monotonic(), "", 0, False
        arrivals, pieces = list[float](), list[str]()
        with self.events(asked) as events:
            for event in events:
                if event is None:
                    ended = True
                    continue
                tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
                for choice in event["choices"]:
                    finish = choice.get("finish_reason") or finish
                    if text := choice["delta"].get("content"):
                        arrivals.append(time.monotonic() - started)
                        pieces.append(text)
        first, last = (arrivals[0], arrivals[-1]) if arrivals else (None, None)
        return Answer(
            "".join(pieces), finish, tokens, time.monotonic() - started, first, last, len(pieces), ended=ended
        )

    @contextmanager
    def events(self, body: Mapping[str, object]) -> Iterator[Iterator[Any]]:
        """The events of a streamed chat completion, `None` for [DONE]; leaving the block early closes the connection.

        Raises EndpointError where the stream is refused, breaks off, or brings something else.
        """
        try:
            with (
                self._client.stream("POST", "/v1/chat/completions", json=dict(body)) as response,
                _expected_shape("the stream"),
            ):
                if response.is_error:
                    response.read()
                    raise _refusal(response)
                kind = response.headers.get("content-type", "missing")
                if not kind.startswith("text/event-stream"):
                    raise EndpointError(f"the stream came as {kind}, not as text/event-stream")
                yield _events(response)
        except httpx.HTTPError as problem:
            raise _unanswered("the stream broke off", problem) from problem

    def look(self, png: bytes, question: str, *, max_tokens: int, **options: object) -> Answer:
        """Ask about a picture, sent as a data URI."""
        parts: list[Mapping[str, object]] = [
            {"type": "image_url", "image_url": {"url": data_uri(png)}},
            {"type": "text", "text": question},
        ]
        return self.chat(parts, max_tokens=max_tokens, **options)

    def status_without_key(self, method: str, path: str) -> int:
        """The HTTP status of a request that carries no key."""
        return self.status(method, path, key=Secret(""))

    def status(self, method: str, path: str, *, key: Secret | None = None) -> int:
        """The HTTP status of an empty request, with another key than the endpoint's where one is given."""
        sent = self._key if key is None else key
        headers = {"Authorization": f"Bearer {sent.reveal()}"} if sent else {}
        try:
            bare = self._keyless.request(method, path, json={} if method == "POST" else None, headers=headers)
        except httpx.HTTPError as problem:
            raise _unanswered(f"{method} {path} brought no answer", problem) from problem
        return bare.status_code

    def counters(self) -> SpecCounters:
        """The counters of speculative decoding as they stand now."""
        return self.metrics().drafts

    def metrics(self) -> Metrics:
        """What the engine has counted until now. Raises EndpointError where /metrics is no such text."""
        with _expected_shape("GET /metrics"):
            return read_metrics(self._send("GET", "/metrics").text)

    def announce(self, size: int) -> int | None:
        """The HTTP status of a chat completion, `size` bytes of it announced; `None` where they are waited for."""
        place = httpx.URL(self.url)
        kind = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
        connection = kind(place.host, place.port, timeout=CONNECT_TIMEOUT)
        try:
            connection.putrequest("POST", f"{place.path.rstrip('/')}/v1/chat/completions")
            for name, value in (("Content-Type", "application/json"), ("Content-Length", str(size))):
                connection.putheader(name, value)
            connection.putheader("Authorization", f"Bearer {self._key.reveal()}")
            connection.endheaders()
            return connection.getresponse().status
        except TimeoutError:
            return None
        except (OSError, http.client.HTTPException) as problem:
            raise EndpointError(f"a body of {size} bytes was announced: {problem or type(problem).__name__}") from None
        finally:
            connection.close()

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
            try:
                response = self._client.request(method, path, json=body)
            except httpx.RemoteProtocolError:
                # a server may close a connection that it kept just when it is used again; a second one is a new one
                response = self._client.request(method, path, json=body)
        except httpx.HTTPError as problem:
            raise _unanswered(f"{method} {path} brought no answer", problem) from problem
        if response.is_error:
            raise _refusal(response)
        return response


def _events(response: httpx.Response) -> Any:
    """The JSON of each server-sent event, `None` for [DONE]."""
    for line in response.iter_lines():
        data = line.removeprefix("data:").strip()
        if line.startswith("data:") and data == "[DONE]":
            yield None
        elif line.startswith("data:"):
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


def _refusal(response: httpx.Response) -> EndpointError:
    said = " ".join(response.text.split())[:300]
    return EndpointError(
        f"{response.request.method} {response.url.path} answered {response.status_code}: {said}",
        status=response.status_code,
    )


def _unanswered(what: str, problem: httpx.HTTPError) -> EndpointError:
    said = str(problem) or type(problem).__name__
    return EndpointError(f"{what}: {said}", silent=isinstance(problem, httpx.TimeoutException))
