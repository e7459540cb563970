"""A scripted Kubernetes that lists pods, and engines as its pods. tests/docker/test_pods.py has real engines."""

import json
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tests.support.serving import Quiet, serving

NAMESPACE, TOKEN = "vision", "token-of-the-account"
CHUNKS, PAUSE = 10, 0.2
"""A streamed answer of an engine."""


def pod(name: str, address: str, *, ready: bool = True, ends: bool = False) -> dict[str, Any]:
    """A pod as Kubernetes lists it."""
    about = {"name": name, **({"deletionTimestamp": "2026-11-23T08:00:00Z"} if ends else {})}
    conditions = [{"type": "ContainersReady", "status": "True"}, {"type": "Ready", "status": str(ready)}]
    return {"metadata": about, "status": {"phase": "Running", "podIP": address, "conditions": conditions}}


@dataclass
class Kubernetes:
    """What the router asks: the list of pods, over TLS with a certificate of its own."""

    account: Path
    port: int = 0
    pods: list[dict[str, Any]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    status: int = 200


@contextmanager
def kubernetes(directory: Path, address: str = "127.0.0.1") -> Iterator[Kubernetes]:
    """A Kubernetes at an address of this machine, with the files of a service account in a directory."""
    key, certificate = directory / "key.pem", directory / "ca.crt"
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    name = ("-days", "1", "-subj", "/CN=kubernetes", "-addext", f"subjectAltName=IP:{address}")
    command = ["openssl", "req", "-x509", *curve, *name, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    (directory / "token").write_text(TOKEN)
    (directory / "namespace").write_text(NAMESPACE)
    api = Kubernetes(directory)

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            api.asked.append(unquote(self.path))
            known = self.headers["Authorization"] == f"Bearer {TOKEN}"
            status = api.status if known else 401
            self.send(status, "application/json", json.dumps({"items": api.pods}).encode())

    server = ThreadingHTTPServer((address, 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    api.port = server.server_address[1]
    with serving(server):
        yield api


@contextmanager
def engines(port: int, *addresses: str, client: str, probe: str) -> Iterator[list[tuple[str, str, str]]]:
    """Engines behind a closed gateway; each names itself in its answers. Yields address, path and key of requests."""
    seen: list[tuple[str, str, str]] = []

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            address = str(self.connection.getsockname()[0])
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or "{}")
            key = (self.headers["Authorization"] or "").removeprefix("Bearer ")
            seen.append((address, self.path, key))
            if self.path == "/health":
                self.send(200, "application/json", b"{}")
            elif self.path == "/metrics" and key == probe:
                names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
                self.send(200, "text/plain", "".join(f"vllm:{name} 0\n" for name in names).encode())
            elif key != client:
                self.send(403 if key else 401, "application/json", b'{"error": "refused"}')
            elif asked.get("stream"):
                self.stream(address)
            else:
                self.send(200, "application/json", json.dumps(_answer(address)).encode())

        def stream(self, address: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for _ in range(CHUNKS):
                delta = {"choices": [{"index": 0, "delta": {"content": address}}]}
                self.wfile.write(f"data: {json.dumps(delta)}\n\n".encode())
                time.sleep(PAUSE)
            self.wfile.write(b"data: [DONE]\n\n")

    with ExitStack() as stack:
        for address in addresses:
            stack.enter_context(serving(ThreadingHTTPServer((address, port), Handler)))
        yield seen


def _answer(address: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": address}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {"id": "1", "object": "chat.completion", "created": 1, "model": "tiny", "choices": [choice], "usage": usage}
