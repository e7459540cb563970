"""Small HTTP servers of the tests: real ones, at a port of this machine, for as long as a block runs."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Quiet(BaseHTTPRequestHandler):
    """A handler that answers whole bodies and writes no log."""

    def send(self, status: int, kind: str, content: bytes) -> None:
        """A whole response."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that were cut off are what some of these tests are about."""


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[None]:
    """Lets a server answer as long as the block runs; then it is closed."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler], port: int = 0) -> Iterator[str]:
    """Serves at that port, or at a free one; yields the address."""
    server = _Server(("127.0.0.1", port), handler)
    with serving(server):
        yield f"http://127.0.0.1:{server.server_port}"
