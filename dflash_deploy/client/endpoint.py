"""An OpenAI-compatible endpoint: connections, requests with its key, and the models and counters it reports.

A connection has keys, certificates and time limits, and returns the answer of one request. `announce` sends the headers
of a body that never follows, which shows the server's limit for bodies. The list of served models checks that the
endpoint answers at all. A SharedEndpoint is the published endpoint in front of engines, with the counters of all
engines together.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import httpx

from dflash_deploy.client.answers import (
    ApiDescription,
    ChatAnswer,
    ChatChunk,
    Completion,
    EndpointError,
    ModelList,
    ServedModel,
    beginning_of,
    completion_of,
    expected_shape,
    read_events,
    refusal_of,
    unanswered,
)
from dflash_deploy.client.images import image_and_question
from dflash_deploy.client.metrics import KeyUsage, Metrics, read_key_usage, read_metrics
from dflash_deploy.errors import EngineNotReady
from dflash_deploy.intake.answers import (
    Answer,
    fetch_answer,
    is_success,
    new_client,
    open_stream,
    read_lines,
    trusting,
    trusting_none,
    within,
)
from dflash_deploy.intake.parse import Invalid
from dflash_deploy.redact import Redact, Secret
from dflash_deploy.serve.engines.counters import SpecCounters
from dflash_deploy.serve.gateway.keys import LIVENESS, says_asleep

if TYPE_CHECKING:
    from ssl import SSLContext

    import aiohttp


CONNECT_TIMEOUT = 5.0  # seconds for a connection, and for an answer that needs no engine


def announce(url: httpx.URL, authorization: Mapping[str, str], size: int, trust: SSLContext | None) -> int:
    """Send the headers of a POST of `size` bytes and return the HTTP status.

    Raises OSError, ValueError or http.client.HTTPException; TimeoutError if the server waits for the body.
    """
    connection = (
        http.client.HTTPSConnection(url.host, url.port, timeout=CONNECT_TIMEOUT, context=trust)
        if url.scheme == "https"
        else http.client.HTTPConnection(url.host, url.port, timeout=CONNECT_TIMEOUT)
    )
    try:
        connection.putrequest("POST", url.path)
        for name, value in (("Content-Type", "application/json"), ("Content-Length", str(size))):
            connection.putheader(name, value)
        for name, value in authorization.items():
            connection.putheader(name, value)
        connection.endheaders()
        return connection.getresponse().status
    finally:
        connection.close()


# Seconds for a whole answer: the first request after a start may compile kernels for more than 30 s.
ANSWER_TIMEOUT = 180.0

QUEUE_TIMEOUT = 900.0  # seconds without a byte under load: requests wait for each other before their first token
LOAD_TIMEOUT = 3600.0  # seconds for a whole request under load: it ends a stream that would never end


class Connection:
    """The connections to a URL, with its key. Use as a context manager; `model` is the served name."""

    def __init__(
        self,
        url: str,
        key: Secret,
        model: str,
        *,
        timeout: float = ANSWER_TIMEOUT,
        proxies: bool = False,
        root: Path | None = None,
    ) -> None:
        """`proxies`: use the proxies of the environment, which an endpoint of this machine does not need.

        `root`: the certificate of a private authority, in place of the public ones. Raises SettingsRefused if it
        cannot be read.
        """
        self.url = url.rstrip("/")
        self.model = model
        self._key = key
        self._proxies = proxies
        self._timeout = timeout
        limits = httpx.Timeout(timeout, connect=CONNECT_TIMEOUT)
        # the engine limits a burst, not the client's default of 100 connections
        pool = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        self._trust = None if root is None else trusting(root)
        # a proxy may be asked over TLS
        plain = url.startswith("http://") and not proxies
        verify = self._trust or (trusting_none() if plain else True)
        how = {"base_url": self.url, "trust_env": proxies, "verify": verify}
        self._client = new_client(headers=self._authorization, timeout=limits, limits=pool, **how)
        self._keyless = new_client(timeout=CONNECT_TIMEOUT, **how)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key.reveal()}"} if self._key else {}

    def close(self) -> None:
        """Close all connections."""
        self._client.close()
        self._keyless.close()

    def async_session(self, connections: int) -> aiohttp.ClientSession:
        """Return an aiohttp session with the same key, for `connections` requests at the same time.

        Call it in a running event loop. aiohttp takes less CPU time than httpx, which matters when the client measures
        an engine on the same cores.
        """
        import aiohttp  # noqa: PLC0415 - 0.2 s, needed under load only

        ssl: bool | SSLContext = True
        if self.url.startswith("https:"):
            ssl = self._trust or httpx.create_ssl_context(trust_env=self._proxies)
        timeout = aiohttp.ClientTimeout(total=LOAD_TIMEOUT, sock_connect=CONNECT_TIMEOUT, sock_read=QUEUE_TIMEOUT)
        return aiohttp.ClientSession(
            # with a slash, so that paths are relative to it: the URL of an endpoint may have a path
            f"{self.url}/",
            headers={**self._authorization, "Content-Type": "application/json", "Accept-Encoding": "identity"},
            connector=aiohttp.TCPConnector(limit=connections, ssl=ssl),
            timeout=timeout,
            trust_env=self._proxies,
        )

    def send(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Answer:
        """Return the answer of a request with a 2xx status. Raises EndpointError for every other one."""
        try:
            try:
                answer = self._fetch(method, path, body)
            except httpx.RemoteProtocolError:
                # the server may close an idle connection just when it is used again; the second request opens a new one
                answer = self._fetch(method, path, body)
        except Invalid as problem:
            raise EndpointError(f"{method} {path} returned an unexpected answer: it {problem}") from None
        except httpx.HTTPError as problem:
            raise unanswered(f"{method} {path} got no answer", problem) from problem
        if not answer.succeeded:
            raise refusal_of(method, answer.url.path, answer.status, answer.text)
        return answer

    def _fetch(self, method: str, path: str, body: Mapping[str, object] | None) -> Answer:
        request = self._client.build_request(method, path, json=body)
        return fetch_answer(self._client, request, seconds=self._timeout)


STREAM_TIMEOUT = 900.0  # seconds for a whole stream, of which each event has to arrive within ANSWER_TIMEOUT
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

    def asleep(self) -> bool:
        """Return whether GET /health says that the engine has ended until the next request. Raises EndpointError."""
        return says_asleep(self.send("GET", LIVENESS).text)

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


# The hint if the endpoint of a deployment does not answer.
START_IT = "start it first: `dflash-deploy up`; `dflash-deploy status` says whether it is starting"


def check_answering(endpoint: Endpoint, *, hint: str, redact: Redact) -> None:
    """Raise EngineNotReady if nothing answers, as on a free port, or if /health answers 503, as while weights load.

    Any other answer is enough, an error included: the requests after it say what is wrong.
    """
    try:
        status = endpoint.status_without_key("GET", "/health")
    except EndpointError as problem:
        if problem.unconnected:
            raise _unconnected(endpoint, problem, hint, redact) from None
        return
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        raise EngineNotReady(f"{endpoint.url} is not ready: GET /health answered {status}", hint=hint)


def _unconnected(endpoint: Endpoint, problem: EndpointError, hint: str, redact: Redact) -> EngineNotReady:
    return EngineNotReady(redact(f"nothing answers on {endpoint.url}: {problem.unconnected}"), hint=hint)


def served_names(endpoint: Endpoint, *, hint: str, redact: Redact) -> list[str]:
    """The model names that an endpoint serves. Raises EngineNotReady for no answer, and without `endpoint.model`."""
    try:
        names = endpoint.models()
    except EndpointError as problem:
        if problem.unconnected:
            raise _unconnected(endpoint, problem, hint, redact) from None
        said = f"{endpoint.url}: {problem}" if problem.status else f"{endpoint.url} does not answer: {problem}"
        raise EngineNotReady(redact(said), hint=hint) from None
    if not names or (endpoint.model and endpoint.model not in names):
        raise EngineNotReady(
            f"{endpoint.url} does not serve {endpoint.model or 'any model'}", hint=f"it serves: {', '.join(names)}"
        )
    return names


class PublishedEndpoint(Endpoint):
    """An endpoint under a domain, which publishes no metrics: those are asked of the engine behind it."""

    def __init__(self, url: str, key: Secret, model: str, engine: Endpoint, *, root: Path | None = None) -> None:
        super().__init__(url, key, model, root=root)
        self._engine = engine

    def close(self) -> None:
        """Close all connections, also those to the engine."""
        self._engine.close()
        super().close()

    def paths(self) -> list[str]:
        """Return the paths in the description of the engine."""
        return self._engine.paths()

    def metrics(self) -> Metrics:
        """Return the counters of the engine. Raises EndpointError."""
        return self._engine.metrics()
