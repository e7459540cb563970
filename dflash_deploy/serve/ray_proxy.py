"""The gateway inside Ray Serve's HTTP proxy, in front of all replicas of a cluster.

Ray's proxy has no key: it answers /-/routes, /docs, /tokenize and all routes of the API without one. On each node,
RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=dflash_deploy.serve.ray_proxy:middlewares puts the gateway in front of them
(Ray 2.60, serve/_private/http_util.py: configure_http_middlewares). The environment of Ray's processes has the
settings; the file that DFLASH_SECRETS_FILE names has the keys, so that no other process of Ray gets them.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from importlib import import_module
from time import monotonic
from typing import Any

from dflash_deploy.serve.gateway.asgi import App, ErrorAnswer, Message, Receive, Scope, Send, json_object
from dflash_deploy.serve.gateway.auth import DenyByDefault
from dflash_deploy.serve.gateway.connections import UVICORN, guard_uvicorn
from dflash_deploy.serve.gateway.contract import COMPLETIONS, MODELS, EngineQuirks
from dflash_deploy.serve.gateway.keys import LIVENESS, METRICS
from dflash_deploy.serve.secrets import read_secrets
from dflash_deploy.serve.settings import Settings

# Whether the proxy itself runs: KubeRay requests it without a key before it sends traffic to a pod (its
# controllers/ray/utils/httpproxy_httpclient.go). The answer is one word.
PROXY_ALIVE = "/-/healthz"

ANSWERS_WITHIN = 30.0  # seconds until the one token of /health must be there
TRUE_FOR = 5.0  # seconds that /health repeats its last answer: all open probes together cost one token in that time
# A prompt of one token ends vLLM 0.29 on a processor, with a drafter and a hybrid target: "must be contiguous".
PROMPT = "What is the capital of France?"
INTERVAL = "RAY_metrics_report_interval_ms"  # the variable with the milliseconds between two reports of a process
MARGIN = 0.3  # seconds that a report takes
COUNTERS_WITHIN = 5.0  # seconds until a node must have sent its counters
_COUNTER = re.compile(r"^ray_vllm_(.+)$", re.MULTILINE)

# What Ray writes around the text of an engine's error: exceptions, tracebacks and addresses of the cluster.
_WRAPPED = re.compile(r"Message: (?P<text>.*?) \(Request ID: .*", re.DOTALL)
# What it says of a replica that ended while it answered (ray.exceptions.ActorDiedError, ActorUnavailableError).
_DIED = re.compile(rb"original exception: (?:The actor died|The actor \w+ is unavailable)")
_OF_RAY = EngineQuirks(any_model=True)  # Ray's 404 for another model's name does not say what is served

CALLBACK = f"{__name__}:middlewares"  # the value of RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH

# What the gateway reads of a deployment's settings, besides SERVED_MODEL_NAME.
SETTINGS = (
    Settings.max_model_len,
    Settings.reasoning_parser,
    Settings.tool_call_parser,
    Settings.extra_args,
    Settings.allowed_origins,
    Settings.limit_images_per_prompt,
    Settings.max_image_megapixels,
    Settings.max_body_mib,
)

Exposition = Callable[[], Awaitable[str]]


def middlewares() -> list[Any]:
    """What Ray Serve puts in front of its proxy. Raises Refused without a valid key, so that no proxy starts open."""
    from starlette.middleware import Middleware

    environment = {**os.environ, **read_secrets(os.environ)}
    # the proxy's server does not announce its start, and imports these only then
    for module in UVICORN:
        with suppress(ImportError):
            import_module(module)
    guard_uvicorn()
    return [Middleware(ClusterGateway, environment=environment)]


class ClusterGateway:
    """An ASGI middleware: `DenyByDefault` in front of a cluster, and of what the cluster does not answer itself."""

    def __init__(
        self, app: App, environment: Mapping[str, str] = os.environ, exposition: Exposition | None = None
    ) -> None:
        """Raises Refused as `DenyByDefault` does. `exposition`: the engines' metrics; `None`: those of all nodes."""
        self._app = app
        cluster = Cluster(app, environment, exposition or metrics_of_nodes)
        self._closed = DenyByDefault(cluster, environment, quirks=_OF_RAY)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        alive = scope["type"] == "http" and scope["method"] in {"GET", "HEAD"} and scope["path"] == PROXY_ALIVE
        await (self._app if alive else self._closed)(scope, receive, send)


class Cluster:
    """Ray's application with what vLLM's server has besides: /health, /metrics, lengths of context, plain errors."""

    def __init__(self, app: App, environment: Mapping[str, str], exposition: Exposition) -> None:
        self._app = app
        self._exposition = exposition
        self._model = Settings.served_model_name.read(environment)[0]
        self._said: tuple[float, bool] | None = None
        self._asking = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request that the gateway let in."""
        get = scope["type"] == "http" and scope["method"] in {"GET", "HEAD"}
        if get and scope["path"] == LIVENESS:
            if not await self._generates(scope):
                raise ErrorAnswer(503, "no replica generates a token", "engine_not_ready")
            await _answer(send, b"")
        elif get and scope["path"] == METRICS:
            await _answer(send, (await self._exposition()).encode())
        elif get and scope["path"] == MODELS:
            status, body = await ask_ray(self._app, scope, MODELS)
            await _answer(send, with_context(body), b"application/json", status)
        else:
            await self._pass_on(scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and once more if its replica died before it answered anything."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        received: list[Message] = []
        for last in (False, True):
            before, answer = list(received), PlainErrors(send, last=last)

            async def again(before: list[Message] = before) -> Message:
                if before:
                    return before.pop(0)
                received.append(await receive())
                return received[-1]

            await self._app(scope, again, answer.send)
            if not answer.lost:
                return

    async def _generates(self, scope: Scope) -> bool:
        """Whether a replica generated a token just now. One question at a time for all callers."""
        async with self._asking:
            if self._said is None or monotonic() - self._said[0] > TRUE_FOR:
                said = False
                with suppress(TimeoutError):
                    said = await asyncio.wait_for(self._ask(scope), ANSWERS_WITHIN)
                self._said = monotonic(), said
            return self._said[1]

    async def _ask(self, scope: Scope) -> bool:
        body = json.dumps({"model": self._model, "prompt": PROMPT, "max_tokens": 1}).encode()
        return (await ask_ray(self._app, scope, COMPLETIONS, body))[0] == 200


async def ask_ray(app: App, scope: Scope, path: str, body: bytes = b"") -> tuple[int, bytes]:
    """GET a path of Ray's application, or POST a body to it; returns the status and the body of the answer."""
    status, parts, unsent = 0, bytearray(), [body]
    asked = {"method": "POST" if body else "GET", "path": path, "raw_path": path.encode(), "query_string": b""}
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]

    async def receive() -> Message:
        if not unsent:
            # Ray waits in a loop for the client to leave: an answer at once would keep all else from running
            await asyncio.Event().wait()
        return {"type": "http.request", "body": unsent.pop(), "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        status = message.get("status", status)
        parts.extend(message.get("body", b""))

    await app({**scope, **asked, "headers": headers}, receive, send)
    return status, bytes(parts)


async def _answer(send: Send, body: bytes, kind: bytes = b"text/plain; version=0.0.4", status: int = 200) -> None:
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def with_context(models: bytes) -> bytes:
    """Ray's list of models with the length of the context where vLLM states it, `max_model_len`."""
    document = json_object(models)
    for model in document.get("data", ()):
        if length := model.get("metadata", {}).get("max_request_context_length"):
            model["max_model_len"] = length
    return json.dumps(document).encode()


class PlainErrors:
    """Passes an answer on; an error without what Ray adds to it. `last`: also the error of a replica that died."""

    def __init__(self, send: Send, *, last: bool) -> None:
        self._send, self._last = send, last
        self._begun: Message | None = None
        self._body = bytearray()
        self.lost = False
        """Whether the replica died and nothing was sent."""

    async def send(self, message: Message) -> None:
        """Pass a message on. An error is held until it is whole."""
        if message["type"] == "http.response.start" and message["status"] >= 400:
            self._begun = message
        elif self._begun is None:
            await self._send(message)
        else:
            self._body.extend(message.get("body", b""))
            if not message.get("more_body", False):
                await self._end(self._begun)

    async def _end(self, begun: Message) -> None:
        self.lost = not self._last and begun["status"] == 500 and _DIED.search(self._body) is not None
        if not self.lost:
            text = plain_error(bytes(self._body))
            kept = [pair for pair in begun["headers"] if pair[0].lower() != b"content-length"]
            await self._send({**begun, "headers": [*kept, (b"content-length", str(len(text)).encode())]})
            await self._send({"type": "http.response.body", "body": text})


def plain_error(body: bytes) -> bytes:
    """The engine's own error in Ray's; any other body as it is."""
    error = json_object(body).get("error")
    if not isinstance(error, dict) or not (found := _WRAPPED.fullmatch(str(error.get("message")))):
        return body
    failed = error.get("code") == 500
    text = "the replica failed; its log says why" if failed else found["text"]
    kind = "internal_error" if failed else "invalid_request_error"
    return json.dumps({"error": {**error, "message": text, "type": kind}}).encode()


async def metrics_of_nodes() -> str:
    """The counters of all replicas, under the names that vLLM gives them on a box; nodes that do not answer lack.

    Each node exports them on a port of its own, as `ray_vllm_…` instead of `vllm:…`. It gets them from its processes
    at an interval, so this waits until they are newer than the call: a reader sees what the engines did before it.
    """
    import aiohttp
    import ray

    await asyncio.sleep(float(os.environ.get(INTERVAL, "10000")) / 1000 + MARGIN)
    alive = [node for node in await asyncio.to_thread(ray.nodes) if node["Alive"]]
    urls = [f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics" for node in alive]
    timeout = aiohttp.ClientTimeout(total=COUNTERS_WITHIN)

    async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:

        async def text(url: str) -> str:
            with suppress(aiohttp.ClientError, TimeoutError):
                async with session.get(url) as answer:
                    return await answer.text()
            return ""

        return named_as_on_a_box(await asyncio.gather(*map(text, urls)))


def named_as_on_a_box(expositions: list[str]) -> str:
    """vLLM's samples of several nodes in one exposition, those of one name together."""
    found = sorted(found for text in expositions for found in _COUNTER.findall(text))
    return "".join(f"vllm:{sample}\n" for sample in found)
