"""One connection of the hub or of its CDN."""

import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import socket
from typing import Any, Literal
from urllib.parse import urlsplit

from tests.support.hub._delivery import Delivery, deliver, replaced
from tests.support.hub._ledger import Seen, Site
from tests.support.hub._routes import Asked, file_of, on_cdn, on_hub
from tests.support.hub._state import State
from tests.support.hub._wire import Wire
from tests.support.hub.faults import Fault


class Server(ThreadingHTTPServer):
    """A listening socket that knows its open connections, so that none outlives it."""

    daemon_threads = False
    request_queue_size = 128

    def __init__(self, site: Site, state: State) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.site = site
        self.state = state
        self._open: set[socket] = set()

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Note the connection."""
        with self.state.lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget the connection."""
        with self.state.lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """End what is open, idle connections included."""
        with self.state.lock:
            left = list(self._open)
        for connection in left:
            try:
                connection.shutdown(2)
            except OSError:
                continue

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news; anything else is a bug of ours, and is raised when the hub closes."""
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):
            self.state.crashes.append(error)


class Handler(BaseHTTPRequestHandler):
    """Reads a request, finds its reply, and lets the faults at it."""

    server: Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Serve."""
        self._serve()

    def do_HEAD(self) -> None:
        """Serve the head alone."""
        self._serve()

    def log_message(self, *_: object) -> None:
        """Say nothing: tests ask the ledger."""

    def _serve(self) -> None:
        state = self.server.state
        url = urlsplit(self.path)
        token = self._token()
        account = state.accounts.get(token or "")
        known: Literal["none", "known", "stale"] = "none" if token is None else "known" if account else "stale"
        seen = Seen(
            site=self.server.site,
            method=self.command,
            path=url.path,
            range=self.headers.get("Range"),
            if_range=self.headers.get("If-Range"),
            authorised="Authorization" in self.headers,
            account=account,
        )
        asked = Asked(url.path, url.query, account, known)
        reply = on_hub(state, asked) if self.server.site == "hub" else on_cdn(state, asked)
        seen.stage, seen.file = reply.stage, reply.file or file_of(url.path)
        with state.lock:
            state.seen.append(seen)
        faults = state.faults_of(seen)
        delivery = deliver(replaced(reply, faults, self.path), seen.range, seen.if_range, faults)
        seen.status = delivery.status
        self._head(delivery)
        if self.command != "HEAD":
            self._body(delivery, faults, seen)

    def _token(self) -> str | None:
        found = re.fullmatch(r"Bearer (.*)", self.headers.get("Authorization") or "")
        return found[1] if found else None

    def _head(self, delivery: Delivery) -> None:
        self.send_response(delivery.status)
        headers = dict(delivery.headers)
        if self.server.site == "hub":
            bucket = "resolvers" if "/resolve" in self.path else "api"
            headers.setdefault("RateLimit", f'"{bucket}";r=499;t=295')
            headers.setdefault("RateLimit-Policy", f'"fixed window";"{bucket}";q=500;w=300')
        for name, value in headers.items():
            self.send_header(name, value)
        if delivery.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(delivery.stop - delivery.start))
        self.end_headers()

    def _body(self, delivery: Delivery, faults: list[Fault], seen: Seen) -> None:
        state = self.server.state

        def count(taken: int) -> None:
            seen.sent += taken

        if not Wire(self.connection, delivery, state.wait, state.until_healed, count).send(faults):
            self.close_connection = True
