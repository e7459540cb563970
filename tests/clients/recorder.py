"""A proxy between a client and the endpoint that keeps what the client really sent. It changes nothing."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar
from urllib.parse import urlsplit

from tests.support.serving import Quiet, listening

# The ends of the paths of requests that a model answers.
GENERATES = ("/chat/completions", "/completions", "/messages", "/responses")

HOP_BY_HOP = frozenset({"host", "content-length", "transfer-encoding", "connection"})


@dataclass(frozen=True)
class Sent:
    """A request to the model: which kinds it is of, the length of its body, and the status of its answer."""

    path: str
    status: int
    stream: bool
    image: bool
    tools: int
    length: int


def sent(path: str, status: int, body: bytes) -> Sent:
    """What a request was, from its body."""
    asked: dict[str, Any] = json.loads(body)
    # of OpenAI's APIs, and of Anthropic's
    image = b"data:image/" in body or b'"media_type":"image/' in body.replace(b'": "', b'":"')
    return Sent(path, status, bool(asked.get("stream")), image, len(asked.get("tools") or ()), len(body))


class Recorder(Quiet, BaseHTTPRequestHandler):
    """Passes each request on, and keeps those that a model answers."""

    protocol_version = "HTTP/1.1"
    place: ClassVar[str]
    kept: ClassVar[list[Sent]]

    def _pass_on(self) -> None:
        body = b"".join(self._body())
        passed = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
        connection = http.client.HTTPConnection(self.place, timeout=600)
        try:
            connection.request(self.command, self.path, body or None, passed)
            with connection.getresponse() as answer:
                if self.command == "POST" and urlsplit(self.path).path.endswith(GENERATES):
                    self.kept.append(sent(self.path, answer.status, body))
                self._bring_back(answer)
        finally:
            connection.close()

    do_GET = do_POST = do_HEAD = do_OPTIONS = _pass_on  # noqa: N815 - the names are the base class's

    def _body(self) -> Iterator[bytes]:
        if self.headers.get("Transfer-Encoding", "") != "chunked":
            yield self.rfile.read(int(self.headers.get("Content-Length", "0")))
            return
        while length := int(self.rfile.readline(), 16):
            yield self.rfile.read(length)
            self.rfile.readline()
        self.rfile.readline()

    def _bring_back(self, answer: http.client.HTTPResponse) -> None:
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        while part := answer.read1(65536):
            self.wfile.write(part)
            self.wfile.flush()


@contextmanager
def recording(url: str) -> Iterator[tuple[str, list[Sent]]]:
    """The address of a recorder before an endpoint, and what it has kept so far."""
    kept: list[Sent] = []
    with listening(type("Recording", (Recorder,), {"place": urlsplit(url).netloc, "kept": kept})) as address:
        yield address, kept
