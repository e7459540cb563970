"""Proxies between a client and an endpoint, each with one thing wrong that real ones have had."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar
from urllib.parse import urlsplit

from tests.support.serving import Quiet, listening

Event = dict[str, Any]
CHAT = "/v1/chat/completions"
MIB = 2**20


class Proxy(Quiet, BaseHTTPRequestHandler):
    """Passes everything on as it is."""

    protocol_version = "HTTP/1.1"
    upstream: ClassVar[str]
    key: ClassVar[str]

    def ask(self, body: Event) -> Event:
        """The chat completion that is asked for upstream."""
        return body

    def said(self, body: Event) -> Event:
        """The answer that the client gets."""
        return body

    def lines(self, upstream: Iterator[bytes]) -> Iterator[bytes]:
        """The lines of a stream that the client gets."""
        return upstream

    def itself(self, body: bytes) -> bool:
        """Whether this was answered without asking upstream."""
        return False

    def authorization(self) -> str | None:
        """The header that goes on."""
        return self.headers.get("Authorization")

    def client_left(self, response: http.client.HTTPResponse) -> None:
        """Nobody reads the stream any more."""

    def _pass_on(self) -> None:
        length = int(self.headers.get("Content-Length", "0"))
        # a larger one is only announced
        body = self.rfile.read(length) if length <= MIB else b""
        if self.itself(body):
            return
        if self.path == CHAT and len(body) > 2:
            body = json.dumps(self.ask(json.loads(body))).encode()
        place = urlsplit(self.upstream)
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=300)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body) if length <= MIB else length)}
        if (authorization := self.authorization()) is not None:
            headers["Authorization"] = authorization
        try:
            connection.request(self.command, self.path, body if length <= MIB else None, headers)
            self._bring_back(connection.getresponse())
        finally:
            connection.close()

    do_GET = do_POST = do_HEAD = _pass_on  # noqa: N815 - the names are the base class's

    def _bring_back(self, response: http.client.HTTPResponse) -> None:
        kind = response.headers.get("Content-Type", "")
        if kind.startswith("text/event-stream"):
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            try:
                for line in self.lines(iter(response.readline, b"")):
                    self.wfile.write(line)
                    self.wfile.flush()
            except (BrokenPipeError, ConnectionResetError):
                self.client_left(response)
            return
        content = response.read()
        if self.path == CHAT and response.status == 200:
            content = json.dumps(self.said(json.loads(content))).encode()
        self.send(response.status, kind, content)


def before(upstream: str, kind: type[Proxy], key: str = "", port: int = 0) -> AbstractContextManager[str]:
    """A proxy of one kind before an endpoint, at that port or a free one, while the block runs; its address."""
    return listening(type(f"Serving{kind.__name__}", (kind,), {"upstream": upstream, "key": key}), port)


class AnswersEverything(Proxy):
    """A page of a hoster that says 200 to whatever is asked."""

    def itself(self, body: bytes) -> bool:
        self.send(200, "text/html", b"<html>It works!</html>")
        return True


class FailsAndSaysHealthy(Proxy):
    """Each generation fails with 500 while /health answers 200, as long as `failing` is set (vllm-project/vllm#7633).

    `asked` has the time of each generation, in seconds of the monotonic clock, and whether it failed.
    """

    failing: ClassVar[threading.Event] = threading.Event()
    asked: ClassVar[list[tuple[float, bool]]] = []

    def itself(self, body: bytes) -> bool:
        if self.command != "POST":
            return False
        fails = self.failing.is_set()
        self.asked.append((time.monotonic(), fails))
        if fails:
            error = {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "code": 500}
            self.send(500, "application/json", json.dumps({"error": error}).encode())
        return fails


class DropsPictures(Proxy):
    """Keeps the text of a message alone, as gateways do that know no other content."""

    def ask(self, body: Event) -> Event:
        for message in body["messages"]:
            if not isinstance(message["content"], str):
                message["content"] = " ".join(part["text"] for part in message["content"] if part["type"] == "text")
        return body


class DropsHistory(Proxy):
    """Sends the last message alone."""

    def ask(self, body: Event) -> Event:
        return body | {"messages": body["messages"][-1:]}


class DropsSchemas(Proxy):
    """Does not know response_format."""

    def ask(self, body: Event) -> Event:
        body.pop("response_format", None)
        return body


class DropsTools(Proxy):
    """Does not know tools."""

    def ask(self, body: Event) -> Event:
        body.pop("tools", None)
        return body


class DropsUsage(Proxy):
    """Does not know stream_options."""

    def ask(self, body: Event) -> Event:
        body.pop("stream_options", None)
        return body


class CutsPrompts(Proxy):
    """Sends the first thousand characters of a prompt, so that nothing is ever too long."""

    def ask(self, body: Event) -> Event:
        for message in body["messages"]:
            if isinstance(message["content"], str):
                message["content"] = message["content"][:1000]
        return body


class CapsAnswers(Proxy):
    """Never asks for more than 20 tokens, and says that the model had no more to say."""

    def ask(self, body: Event) -> Event:
        return body | {"max_tokens": min(body["max_tokens"], 20)}

    def said(self, body: Event) -> Event:
        for choice in body["choices"]:
            choice["finish_reason"] = "stop"
        return body


class RewritesNames(Proxy):
    """Asks for one model whatever the client asked for."""

    model: ClassVar[str] = "scripted"

    def ask(self, body: Event) -> Event:
        return body | {"model": self.model}


class AddsTheKey(Proxy):
    """Knows the key and lets everybody in."""

    def authorization(self) -> str | None:
        return f"Bearer {self.key}"


class Caches(Proxy):
    """Gives the same answer to the same question."""

    known: ClassVar[dict[bytes, Event]] = {}

    def itself(self, body: bytes) -> bool:
        self.asked = body
        if self.path == CHAT and body in self.known:
            self.send(200, "application/json", json.dumps(self.known[body]).encode())
            return True
        return False

    def said(self, body: Event) -> Event:
        self.known[self.asked] = body
        return body


class CachesAnew(Caches):
    """The same, with a new id each time."""

    def itself(self, body: bytes) -> bool:
        self.asked = body
        if self.path == CHAT and body in self.known:
            self.known[body]["id"] += "x"
        return super().itself(body)


class Buffers(Proxy):
    """Collects a stream and passes it on at its end."""

    def lines(self, upstream: Iterator[bytes]) -> Iterator[bytes]:
        return iter([b"".join(upstream)])


class Pauses(Buffers):
    """Collects the first streams alone, as a busy machine does that reads all chunks of a short stream at once.

    Three in a row were seen in CI, in front of an engine in a container.
    """

    left: ClassVar[int] = 5

    def lines(self, upstream: Iterator[bytes]) -> Iterator[bytes]:
        if not type(self).left:
            return upstream
        type(self).left -= 1
        return super().lines(upstream)


class Garbles(Proxy):
    """Puts its own words among the events."""

    def lines(self, upstream: Iterator[bytes]) -> Iterator[bytes]:
        for number, line in enumerate(upstream):
            yield b"data: <html>504 Gateway Time-out</html>\n" if number == 6 else line


class CutsStreams(Proxy):
    """Ends a stream after some events, as a time limit does; the usage it had seen before comes with each of them."""

    def lines(self, upstream: Iterator[bytes]) -> Iterator[bytes]:
        for number, line in enumerate(upstream):
            if number >= 40:
                return
            if line.startswith(b"data: {"):
                event = json.loads(line.removeprefix(b"data: "))
                yield b"data: " + json.dumps(event | {"usage": {"completion_tokens": number}}).encode() + b"\n"
            else:
                yield line


class NotAStream(Proxy):
    """Has its own idea of what a stream is."""

    def itself(self, body: bytes) -> bool:
        if self.path == CHAT and b'"stream"' in body:
            self.send(200, "application/json", b"{}")
            return True
        return False


class HidesMetrics(Proxy):
    """Passes on /v1 alone."""

    def itself(self, body: bytes) -> bool:
        if self.path == "/metrics":
            self.send(404, "application/json", b"{}")
            return True
        return False


class ChatsOnly(Proxy):
    """Passes on chats and no text completions, as gateways with a list of routes do."""

    def itself(self, body: bytes) -> bool:
        if self.path == "/v1/completions":
            self.send(404, "application/json", b'{"error": {"message": "unknown route"}}')
            return True
        return False


class OtherMetrics(Proxy):
    """Has the /metrics of an engine that stands still."""

    text: ClassVar[bytes] = b"vllm:num_requests_running 0\nvllm:generation_tokens_total 5\n"

    def itself(self, body: bytes) -> bool:
        if self.path == "/metrics":
            self.send(200, "text/plain", self.text)
            return True
        return False


class ProxysOwnMetrics(OtherMetrics):
    """Has its own /metrics instead of the engine's."""

    text: ClassVar[bytes] = b"# TYPE http_requests counter\nhttp_requests_total 7\n"


class ReadsOn(Proxy):
    """Takes in the whole answer even though its client left."""

    def client_left(self, response: http.client.HTTPResponse) -> None:
        response.read()


class TurnsAwayBursts(Proxy):
    """Takes three requests at a time, and sends the others away."""

    places: ClassVar[threading.Semaphore] = threading.Semaphore(3)
    turned_away: ClassVar[threading.Event] = threading.Event()

    def itself(self, body: bytes) -> bool:
        self.placed = self.places.acquire(blocking=False)
        if not self.placed:
            self.turned_away.set()
            self.send(503, "application/json", b'{"error": "busy"}')
        return not self.placed

    def _bring_back(self, response: http.client.HTTPResponse) -> None:
        try:
            # all of a burst are under way until one of them was turned away
            self.turned_away.wait(60)
            super()._bring_back(response)
        finally:
            self.places.release()
