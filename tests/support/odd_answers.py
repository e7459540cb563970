"""Answers that are not what was asked for, as scripts send them over real HTTP."""

import gzip
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

MIB = 2**20

DEEP = b"[" * 100_000
GIANT = b"9" * 5000

ODD_BODIES: Mapping[str, bytes] = {
    "empty": b"",
    "page": b"<html><h1>Sign in</h1></html>",
    "null": b"null",
    "list": b"[]",
    "number": b"42",
    "float": b"1e999",
    "string": b'"yes"',
    "true": b"true",
    "empty object": b"{}",
    "truncated": b'{"id": "x", "choi',
    "deep": DEEP,
    "deep object": b'{"a":' * 100_000,
    "giant integer": GIANT,
    "NaN": b"NaN",
    "UTF-16": '{"data": []}'.encode("utf-16"),
    "not UTF-8": b'{"data": "\xff\xfe"}',
    "surrogate": b'{"id": "\\ud800"}',
    "NUL": b"\0\0\0\0",
    "many values": b"[" + b"[]," * 1_000_001 + b"1]",
}


@dataclass(frozen=True)
class Reply:
    """One answer, whole; `headers` replace Content-Type."""

    content: bytes
    status: int = 200
    headers: Mapping[str, str] | None = None

    def wire(self) -> bytes:
        """The bytes on the connection."""
        headers = {"Content-Type": "application/json", **(self.headers or {})}
        lines = [f"HTTP/1.1 {self.status} OK", *(f"{name}: {value}" for name, value in headers.items())]
        lines += [f"Content-Length: {len(self.content)}", "Connection: close", "", ""]
        return "\r\n".join(lines).encode() + self.content


def as_json(value: object, **more: Any) -> Reply:
    """A JSON document."""
    return Reply(json.dumps(value).encode(), **more)


def endless(head: bytes, each: bytes, pause: float = 0.0) -> Iterator[bytes]:
    """A head, then the same bytes until the client leaves."""
    yield head
    while True:
        yield each
        time.sleep(pause)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def bomb(size: int = 64 * MIB) -> Reply:
    """A small body that grows to `size` bytes."""
    return Reply(gzip.compress(b" " * size), headers={"Content-Encoding": "gzip"})


@contextmanager
def answering(*replies: Any) -> Iterator[str]:
    """A server whose connections get one reply each: a Reply, or an iterable of bytes; the last one for ever.

    A callable is called for each connection. Yields the address.
    """
    left, guard, ended = list(replies), threading.Lock(), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)

        def serve(connection: socket.socket) -> None:
            with guard:
                reply = left.pop(0) if len(left) > 1 else left[0]
            reply = reply() if callable(reply) else reply
            with connection:
                connection.settimeout(10)
                try:
                    _read_request(connection)
                    for part in [reply.wire()] if isinstance(reply, Reply) else reply:
                        if ended.is_set():
                            return
                        connection.sendall(part)
                except OSError:
                    return

        def accept() -> None:
            while not ended.is_set():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                except OSError:
                    return
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ended.set()
            thread.join()


def _read_request(connection: socket.socket) -> None:
    read = b""
    while b"\r\n\r\n" not in read:
        part = connection.recv(65536)
        if not part:
            return
        read += part
    head, _, body = read.partition(b"\r\n\r\n")
    length = next(
        (int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
    )
    while len(body) < min(length, MIB):
        part = connection.recv(65536)
        if not part:
            return
        body += part
