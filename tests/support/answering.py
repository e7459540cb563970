"""An endpoint that answers as fast as it can be read, for what a real engine is too slow or too healthy to show.

What it sends was seen from vLLM 0.32: a chunk that names the role, chunks of text, one with the reason of the end, the
usage, [DONE]; the counters as in tests/unit/client/test_metrics.py.
"""

import json
import multiprocessing
import socket
import socketserver
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

KEY = "only-for-this-endpoint-0123456789"
MODEL = "answering"


def event(**fields: object) -> bytes:
    """One server-sent event."""
    return (
        b"data: "
        + json.dumps({"id": "x", "object": "chat.completion.chunk", "model": MODEL, **fields}).encode()
        + b"\n\n"
    )


def choice(finish: str | None = None, **delta: str) -> bytes:
    """An event with one choice."""
    return event(choices=[{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}])


def answer(chunks: int, tokens_per_chunk: int = 1) -> list[bytes]:
    """The events of one answer."""
    usage = {"prompt_tokens": 10, "completion_tokens": chunks * tokens_per_chunk}
    role, text = choice(role="assistant", content=""), choice(content="word " * tokens_per_chunk)
    return [role, *[text] * chunks, choice("stop", content=""), event(choices=[], usage=usage), b"data: [DONE]\n\n"]


class Handler(BaseHTTPRequestHandler):
    """Answers /v1/models, /metrics and completions; `events` and `refuse` are set on a subclass."""

    protocol_version = "HTTP/1.1"
    events: tuple[bytes, ...] = ()
    refuse = 0

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
        """Say nothing."""

    def do_GET(self) -> None:
        """The models, and counters that stand still."""
        if self._locked():
            return
        if self.path == "/v1/models":
            self._whole(HTTPStatus.OK, json.dumps({"data": [{"id": MODEL}]}).encode())
        else:
            self._whole(HTTPStatus.NOT_FOUND, b"{}")

    def do_POST(self) -> None:
        """A stream, or a refusal for the first `refuse` requests of a connection."""
        asked = self.rfile.read(int(self.headers["Content-Length"]))
        if self._locked():
            return
        if self.refuse:
            self._whole(HTTPStatus.SERVICE_UNAVAILABLE, f'{{"error": "busy, key {KEY}"}}'.encode())
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for one in self.events:
            if not one and b"stream" in asked:
                # until the client leaves
                with suppress(ConnectionError):
                    self.rfile.read(1)
                return
            # each in a write of its own, as an engine sends them
            self.wfile.write(b"%x\r\n%s\r\n" % (len(one), one))
        self.wfile.write(b"0\r\n\r\n")

    def _locked(self) -> bool:
        if self.headers["Authorization"] == f"Bearer {KEY}":
            return False
        self._whole(HTTPStatus.UNAUTHORIZED, b'{"error": "no key"}')
        return True

    def _whole(self, status: HTTPStatus, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection, address


def _serve(server: _Server) -> None:
    server.serve_forever()


@contextmanager
def answering(events: list[bytes], *, refuse: bool = False) -> Iterator[str]:
    """The address of such an endpoint in a process of its own, so that it does not share its client's interpreter.

    At an empty event a stream hangs.
    """
    handler = type("Answering", (Handler,), {"events": tuple(events), "refuse": int(refuse)})
    with _Server(("127.0.0.1", 0), handler) as server:
        process = multiprocessing.get_context("fork").Process(target=_serve, args=(server,), daemon=True)
        process.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            process.terminate()
            process.join()
