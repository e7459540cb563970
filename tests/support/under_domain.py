"""A client of a deployment under the domain `localhost`, as on another machine: it knows URL, key and certificate."""

import json
import socket
import ssl
from pathlib import Path
from typing import Any

import httpx
import openai

from dflash_deploy.deployment.directory import Deployment
from tests.support.cli import dflash

HANGS = 300.0
"""Seconds after which something counts as hung."""

HOST = "localhost"
ELSEWHERE = "127.0.0.2"
"""An address of this machine that only servers on all addresses listen on, as other machines see it."""

QUESTION = [{"role": "user", "content": "Count from 1 to 10."}]

CLOSED = (
    *("/metrics", "/props", "/slots", "/docs", "/openapi.json", "/completion", "/v1", "/", "//metrics", "/health/x"),
    *("/v1/chat/completions/../../../slots", "/v1/models/%2e%2e/%2e%2e/metrics", "/lora-adapters", "/config/"),
)
"""Routes of llama.cpp and of Caddy's administration."""


def port_of(directory: Path, name: str) -> int:
    """A port of `.env`."""
    return int(Deployment.existing(directory).values[name])


def url_of(directory: Path) -> str:
    """The published URL."""
    return f"https://{HOST}:{port_of(directory, 'DFLASH_HTTPS_PORT')}"


def root_of(directory: Path) -> Path:
    """The certificate that `connect` tells clients to trust."""
    found = dflash("connect", "openai-python", "--json", at=directory).succeeded().document["data"]
    assert found["endpoint"] == f"{url_of(directory)}/v1"
    assert url_of(directory) in found["configuration"]
    return Path(found["root_certificate"])


def client(directory: Path, key: str | None = None) -> httpx.Client:
    """An HTTP client with the first key, or another one; an empty one is not sent."""
    known = Deployment.existing(directory).key.reveal() if key is None else key
    headers = {"Authorization": f"Bearer {known}"} if known else {}
    trust = ssl.create_default_context(cafile=str(root_of(directory)))
    return httpx.Client(base_url=url_of(directory), headers=headers, verify=trust, http2=True, timeout=HANGS)


def sdk(directory: Path, http: httpx.Client) -> openai.OpenAI:
    """The openai SDK over it."""
    key = Deployment.existing(directory).key.reveal()
    return openai.OpenAI(api_key=key, base_url=f"{url_of(directory)}/v1", http_client=http, max_retries=0)


def listens(host: str, port: int) -> bool:
    """Whether something accepts connections there."""
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def streams_over_http2(directory: Path) -> None:
    """The openai SDK gets a stream, over HTTP/2."""
    with client(directory) as http:
        chunks = sdk(directory, http).chat.completions.create(
            model="tiny",
            messages=QUESTION,
            stream=True,
            max_tokens=32,
        )
        assert len([chunk for chunk in chunks if chunk.choices]) > 1
        assert http.get("/v1/models").http_version == "HTTP/2"


def only_routes_of_applications(directory: Path) -> None:
    """All other routes are closed, with and without a key, and plain HTTP only redirects."""
    for key, expected in (("", 401), (None, 404)):
        with client(directory, key) as http:
            assert {path: http.get(path).status_code for path in CLOSED} == dict.fromkeys(CLOSED, expected)
    with client(directory, "") as http:
        assert http.get("/health").status_code == 200
        assert http.post("/v1/chat/completions", json={}).status_code == 401
    plain = f"http://{HOST}:{port_of(directory, 'DFLASH_HTTP_PORT')}"
    assert httpx.get(f"{plain}/v1/models", timeout=HANGS).headers["location"] == f"{url_of(directory)}/v1/models"


def too_large(directory: Path) -> openai.APIStatusError:
    """The error of a body above MAX_BODY_MIB=1, as the SDK has it."""
    question = [{"role": "user", "content": "x" * (4 << 20)}]
    with client(directory) as http:
        try:
            sdk(directory, http).chat.completions.create(model="tiny", messages=question)
        except openai.APIStatusError as refused:
            return refused
    raise AssertionError("it was accepted")


def logged(directory: Path, name: str) -> list[dict[str, Any]]:
    """The lines of the door's access log with the name of this key, as `logs` shows them."""
    shown = dflash("logs", at=directory).succeeded().out.splitlines()
    lines = [line.partition(" | ")[2] for line in shown if line.startswith("door | {")]
    return [line for line in map(json.loads, lines) if line.get("key") == name]
