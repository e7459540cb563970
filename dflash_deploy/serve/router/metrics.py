"""The router's metrics, behind a key that opens /metrics: SMG itself gives them to anyone.

In a container SMG has them on the container's own loopback address, and this server is what the door publishes. The
keys are the ones of the engines' gateways, read from the same file with each request, so a revoked one is refused at
once.
"""

from __future__ import annotations

import threading
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from dflash_deploy.serve.gateway.keys import METRICS, opens, read_accepted, whose

LOOPBACK = "127.0.0.1"

SECONDS = 5.0
"""The limit for SMG's answer, and for each read and write of a client."""

MOST_BYTES = 16 << 20
"""The longest answer of SMG that is passed on."""


def open_port(port: int) -> int:
    """The port of the metrics without a key, beside the router's own."""
    return port + 1


def guarded_port(port: int) -> int:
    """The port of the metrics behind a key."""
    return port + 2


def status_for(authorization: str | None, keys_file: Path) -> HTTPStatus:
    """What a request for the metrics gets: 200 with a key of the file that opens them."""
    scheme, _, key = (authorization or "").partition(" ")
    try:
        known = whose(key.encode(), read_accepted(keys_file)) if scheme.lower() == "bearer" else None
    except (OSError, ValueError, KeyError, TypeError):
        # who may read them is not known
        return HTTPStatus.SERVICE_UNAVAILABLE
    if known is None:
        return HTTPStatus.UNAUTHORIZED
    return HTTPStatus.OK if opens(known.scope, "GET", METRICS) else HTTPStatus.FORBIDDEN


class _Guarded(BaseHTTPRequestHandler):
    keys_file: Path
    source: int
    timeout = SECONDS

    def do_GET(self) -> None:
        if self.path != METRICS:
            self._answer(HTTPStatus.NOT_FOUND)
            return
        status = status_for(self.headers.get("Authorization"), self.keys_file)
        if status is not HTTPStatus.OK:
            self._answer(status)
            return
        try:
            text = _metrics_of(self.source)
        except (OSError, HTTPException):
            self._answer(HTTPStatus.BAD_GATEWAY)
            return
        self._answer(status, text)

    def _answer(self, status: HTTPStatus, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing: the door has a log."""


def _metrics_of(port: int) -> bytes:
    """What SMG answers. Raises OSError and HTTPException."""
    connection = HTTPConnection(LOOPBACK, port, timeout=SECONDS)
    try:
        connection.request("GET", METRICS)
        answer = connection.getresponse()
        text = answer.read(MOST_BYTES + 1)
        if answer.status != HTTPStatus.OK or len(text) > MOST_BYTES:
            raise OSError(f"SMG answers {METRICS} with {answer.status} and {len(text)} bytes")
        return text
    finally:
        connection.close()


def guard_metrics(keys_file: Path, host: str, port: int, source: int) -> ThreadingHTTPServer:
    """Serve the metrics of `source`, a port of this machine, behind a key, in a thread that ends with the process."""
    handler = type("Guarded", (_Guarded,), {"keys_file": keys_file, "source": source})
    server = ThreadingHTTPServer((host, port), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server
