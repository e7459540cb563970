"""Offer the files of dflash.lock to other hosts over HTTP, at the addresses that the Hub has for them.

A host that takes them downloads as from the Hub: over several connections, resumed mid-file, checked by digest. Only
files of the lock have an address, and only clients with the token of this one transfer get them.
"""

from __future__ import annotations

import hmac
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any

from dflash_deploy.errors import FileRefused
from dflash_deploy.intake.files import open_file
from dflash_deploy.redact import Secret
from dflash_deploy.weights.fetch import identity_of
from dflash_deploy.weights.lock import Lock, LockedFile
from dflash_deploy.weights.pull import RequestedModel
from dflash_deploy.weights.source import Source

MOST_CONNECTIONS = 512
"""Connections at the same time: eight for each of 64 hosts."""

SILENT = 60.0
"""Seconds after which a connection that sends or takes nothing is closed."""

_RANGE = re.compile(r"bytes=([0-9]{1,19})-([0-9]{1,19})")


@dataclass(frozen=True)
class OfferedFile:
    """A file on this machine, and what the lock says of it."""

    path: Path
    locked: LockedFile


def offered_files(wanted: Iterable[RequestedModel], lock: Lock) -> Mapping[str, OfferedFile]:
    """Return the files of a deployment by the path of their URL."""
    here = Source("", Secret(""))
    return {
        here.file(model.repo, model.commit, file.path): OfferedFile(requested.directory / file.path, file)
        for requested in wanted
        if (model := lock.models.get(requested.role)) is not None
        for file in model.files
    }


class WeightsServer(ThreadingHTTPServer):
    """A server of these files at `address`, on a free port."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: str, files: Mapping[str, OfferedFile], token: Secret) -> None:
        super().__init__((address, 0), _Handler)
        self.files = files
        self.token = token
        self._asked = time.monotonic()
        self._open = 0
        self._answering = 0
        self._guard = threading.Lock()

    def server_bind(self) -> None:
        """Bind to the address, without the name service: HTTPServer asks it for the name of the address."""
        TCPServer.server_bind(self)

    @property
    def url(self) -> str:
        """Where it listens."""
        address, port = self.server_address[:2]
        return f"http://{address if isinstance(address, str) else address.decode()}:{port}"

    @property
    def idle(self) -> float:
        """Seconds since the last answer to a request with the token ended; 0 while one is sent."""
        with self._guard:
            return 0.0 if self._answering else time.monotonic() - self._asked

    @contextmanager
    def answering(self) -> Iterator[None]:
        """The block answers a request with the token. Other requests do not keep the offer open."""
        with self._guard:
            self._answering += 1
        try:
            yield
        finally:
            with self._guard:
                self._answering -= 1
                self._asked = time.monotonic()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is room for one more connection."""
        with self._guard:
            room = self._open < MOST_CONNECTIONS
            self._open += room
        return room

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one connection in a thread of its own."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._guard:
                self._open -= 1

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a client that went away asks again."""


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[None]:
    """Let a server answer as long as the block runs; then it is closed."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    timeout = SILENT
    server: WeightsServer

    def do_GET(self) -> None:
        """Send a file, or the requested bytes of it."""
        if not self._authorized():
            self.close_connection = True
            self._refuse(HTTPStatus.UNAUTHORIZED)
            return
        with self.server.answering():
            self._answer()

    def _answer(self) -> None:
        found = self.server.files.get(self.path)
        if found is None:
            self._refuse(HTTPStatus.NOT_FOUND)
            return
        try:
            self._send(found)
        except FileRefused:
            self._refuse(HTTPStatus.NOT_FOUND)

    def _authorized(self) -> bool:
        given = self.headers.get("Authorization", "").encode("latin-1", "replace")
        return hmac.compare_digest(given, f"Bearer {self.server.token.reveal()}".encode())

    def _send(self, found: OfferedFile) -> None:
        size, etag = found.locked.size, f'"{identity_of(found.locked) or found.locked.size}"'
        asked = _RANGE.fullmatch(self.headers.get("Range", ""))
        start, end = (int(asked[1]), min(int(asked[2]) + 1, size)) if asked else (0, size)
        part = asked is not None and self.headers.get("If-Range", etag) == etag
        start, end = (start, end) if part else (0, size)
        if start >= end and size:
            self._refuse(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
            return
        with open_file(found.path) as file:
            self.send_response(HTTPStatus.PARTIAL_CONTENT if part else HTTPStatus.OK)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(end - start))
            self.send_header("ETag", etag)
            if part:
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
            self.end_headers()
            self.wfile.flush()
            # a file that is shorter than the lock says ends the connection, and the client asks again
            sent = self.connection.sendfile(file, start, end - start) if end > start else 0
        self.close_connection = sent < end - start

    def _refuse(self, status: HTTPStatus) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Nothing is logged."""
