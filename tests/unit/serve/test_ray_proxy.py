"""The gateway in Ray's proxy: what is closed, what it adds to Ray's own answers, and what it leaves out of them."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dflash_deploy.serve import ray_proxy
from dflash_deploy.serve.gateway.asgi import Message, Receive, Scope, Send
from dflash_deploy.serve.ray_proxy import ClusterGateway, named_as_on_a_box, plain_error
from dflash_deploy.serve.refusal import Refused

KEY, OTHER = "k" * 24, "o" * 24
ENVIRONMENT = {"VLLM_API_KEY": KEY, "DFLASH_API_KEYS": f"app:{OTHER}:in_flight=1", "SERVED_MODEL_NAME": "tiny"}
NODES = (
    '# TYPE ray_vllm_x counter\nray_vllm_x_total{ReplicaId="a"} 2.0\nray_serve_y 1.0\n',
    'ray_vllm_x_total{ReplicaId="b"} 3.0\n',
)
CRASHED = "Message: Internal Server Error (Request ID: 1), Internal exception: boom, original exception: File /a.py\n x"
TOO_LONG = "Message: too many tokens (Request ID: 1), Internal exception: a.B (Request ID: 1), original exception: "


class Ray:
    """Ray's proxy: it answers everybody. `generates`: the status of a request that generates."""

    def __init__(self, generates: int = 200, error: str = CRASHED) -> None:
        self.generates, self.error = generates, error
        self.asked: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.append(scope["path"])
        first = await receive()
        left = asyncio.create_task(self._until_the_client_leaves(receive))
        await self._answer(scope, first, send)
        if left.done():
            left.result()
        left.cancel()

    async def _until_the_client_leaves(self, receive: Receive) -> None:
        for _ in range(100):
            # serve/_private/http_util.py receives in a loop without an end
            assert await receive()
        raise AssertionError("the same message again and again: the proxy would do nothing else")

    async def _answer(self, scope: Scope, first: Message, send: Send) -> None:
        await asyncio.sleep(0)
        status, body = 200, b"{}"
        if scope["path"] == "/v1/models":
            known = {"id": "tiny", "object": "model", "metadata": {"max_request_context_length": 2048}}
            body = json.dumps({"object": "list", "data": [known]}).encode()
        elif scope["method"] == "POST":
            assert first["body"]
            status = self.generates
            if status >= 400:
                error = {"message": self.error, "type": "OpenAIHTTPException", "param": None, "code": status}
                body = json.dumps({"error": error}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await asyncio.sleep(0.01)
        await send({"type": "http.response.body", "body": body[:3], "more_body": True})
        await send({"type": "http.response.body", "body": body[3:]})


async def exposition() -> str:
    return named_as_on_a_box([*NODES])


def gateway(ray: Ray, environment: Mapping[str, str] = ENVIRONMENT) -> ClusterGateway:
    return ClusterGateway(ray, environment, exposition)


async def ask(app: ClusterGateway, path: str, key: str = "", body: bytes = b"", method: str = "") -> tuple[int, bytes]:
    headers = [(b"host", b"box"), *([(b"authorization", f"Bearer {key}".encode())] if key else [])]
    if body:
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    scope = {"type": "http", "method": method or ("POST" if body else "GET"), "path": path, "headers": headers}
    status, text = 0, b""

    unsent = [body]

    async def receive() -> Message:
        if not unsent:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": unsent.pop(), "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status, text
        status, text = message.get("status", status), text + message.get("body", b"")

    await app({**scope, "query_string": b"", "raw_path": path.encode()}, receive, send)
    return status, text


def answer(*args: Any, **kwargs: Any) -> tuple[int, bytes]:
    return asyncio.run(ask(*args, **kwargs))


CLOSED = ["/v1/models", "/docs", "/openapi.json", "/-/routes", "/metrics", "/v1/score", "/", "/-/healthz/", "/health/"]


@pytest.mark.parametrize("path", CLOSED)
def test_each_route_of_ray_needs_a_key(path: str) -> None:
    ray = Ray()
    assert answer(gateway(ray), path)[0] == 401
    assert answer(gateway(ray), path, key="x" * 24)[0] == 401
    assert ray.asked == []
    assert answer(gateway(ray), path, key=KEY)[0] == 200


@pytest.mark.parametrize("path", ["/-/routes", "/docs", "/metrics", "/v1/completions/../../docs"])
def test_a_key_of_an_application_opens_what_it_does_on_a_box(path: str) -> None:
    assert answer(gateway(Ray()), path, key=OTHER)[0] == 403
    assert answer(gateway(Ray()), "/v1/models", key=OTHER)[0] == 200


def test_whether_the_proxy_runs_is_open_for_kuberay_and_to_read_only() -> None:
    assert answer(gateway(Ray()), "/-/healthz")[0] == 200
    assert answer(gateway(Ray()), "/-/healthz", body=b"{}")[0] == 401


def test_without_a_key_no_proxy_starts() -> None:
    with pytest.raises(Refused):
        gateway(Ray(), {"SERVED_MODEL_NAME": "tiny"})


@pytest.mark.parametrize("lines", ["", "VLLM_API_KEY=\n"])
def test_without_a_file_of_keys_no_proxy_starts(lines: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys.env").write_text(lines)
    monkeypatch.setenv("DFLASH_SECRETS_FILE", str(tmp_path / "keys.env"))
    monkeypatch.setenv("SERVED_MODEL_NAME", "tiny")
    with pytest.raises(Refused):
        ray_proxy.middlewares()


def test_health_is_a_generated_token_asked_for_once_whoever_asks() -> None:
    ray = Ray()

    async def many() -> list[tuple[int, bytes]]:
        app = gateway(ray)
        return list(await asyncio.gather(*(ask(app, "/health") for _ in range(20))))

    assert asyncio.run(many()) == [(200, b"")] * 20
    assert ray.asked == ["/v1/completions"]


@pytest.mark.parametrize("status", [500, 503, 404])
def test_health_fails_while_no_replica_generates(status: int) -> None:
    code, body = answer(gateway(Ray(status)), "/health")
    assert code == 503
    assert json.loads(body)["error"]["code"] == "engine_not_ready"


def test_health_fails_if_a_replica_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_proxy, "ANSWERS_WITHIN", 0.05)

    class Silent(Ray):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await asyncio.Event().wait()

    assert answer(gateway(Silent()), "/health")[0] == 503


def test_metrics_have_the_names_of_a_box_for_all_nodes_and_the_use_of_keys() -> None:
    app = gateway(Ray())
    asyncio.run(ask(app, "/v1/completions", key=OTHER, body=b'{"model": "tiny", "prompt": "a"}'))
    text = answer(app, "/metrics", key=KEY)[1].decode()
    assert text.startswith('vllm:x_total{ReplicaId="a"} 2.0\nvllm:x_total{ReplicaId="b"} 3.0\n')
    assert "ray_" not in text
    assert 'dflash_key_requests_total{name="app",status="200"} 1.0' in text


def test_models_have_the_length_of_the_context_as_on_a_box() -> None:
    (model,) = json.loads(answer(gateway(Ray()), "/v1/models", key=KEY)[1])["data"]
    assert model["max_model_len"] == 2048


@pytest.mark.parametrize(("status", "error"), [(500, CRASHED), (400, TOO_LONG)])
def test_errors_show_nothing_of_the_cluster(status: int, error: str) -> None:
    sent = b'{"model": "tiny", "prompt": "a"}'
    code, body = answer(gateway(Ray(status, error)), "/v1/completions", key=KEY, body=sent)
    assert code == status
    message = json.loads(body)["error"]["message"]
    assert message == ("too many tokens" if status == 400 else "the replica failed; its log says why")


DIED = "Message: Internal Server Error (Request ID: 1), Internal exception: x (Request ID: 1), original exception: "


@pytest.mark.parametrize("why", ["The actor died unexpectedly before finishing", "The actor b09b is unavailable: RPC"])
@pytest.mark.parametrize(("deaths", "status"), [(1, 200), (2, 500)])
def test_a_request_whose_replica_died_is_passed_on_once_more(why: str, deaths: int, status: int) -> None:
    class Dies(Ray):
        async def _answer(self, scope: Scope, first: Message, send: Send) -> None:
            self.generates = 500 if len(self.asked) <= deaths else 200
            await super()._answer(scope, first, send)

    ray = Dies(error=DIED + why)
    code, body = answer(gateway(ray), "/v1/completions", key=KEY, body=b'{"model": "tiny", "prompt": "a"}')
    assert code == status
    assert len(ray.asked) == 2
    assert b"actor" not in body


def test_a_request_that_made_the_engine_fail_is_not_passed_on_again() -> None:
    ray = Ray(500, CRASHED)
    assert answer(gateway(ray), "/v1/completions", key=KEY, body=b'{"model": "tiny", "prompt": "a"}')[0] == 500
    assert len(ray.asked) == 1


@pytest.mark.parametrize("body", [b"", b"Not Found", b'{"error": "no"}', b'{"error": {"message": "plain"}}', b"[1]"])
def test_other_errors_stay_as_they_are(body: bytes) -> None:
    assert plain_error(body) == body


def test_another_models_name_is_refused_with_the_one_that_is_served() -> None:
    code, body = answer(gateway(Ray()), "/v1/chat/completions", key=KEY, body=b'{"model": "other", "messages": []}')
    assert code == 404
    assert "use `tiny`" in json.loads(body)["error"]["message"]
