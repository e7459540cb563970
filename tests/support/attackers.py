"""Clients that attack an endpoint without end: packed and slow bodies, beginnings, pictures, idle connections."""

from __future__ import annotations

import gzip
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import httpx

from tests.support.attacked import Endpoint, chat, half_heads, png

CONNECTIONS = 2000


@contextmanager
def attacking(endpoint: Endpoint) -> Iterator[None]:
    """All attacks at the same time, in a process of their own, until the block ends."""
    attacker = multiprocessing.get_context("spawn").Process(target=_attack, args=(endpoint,))
    attacker.start()
    try:
        yield
    finally:
        attacker.terminate()
        attacker.join()


def _attack(endpoint: Endpoint) -> None:
    for one in (_packed, _beginnings, _slow, _pictures):
        threading.Thread(target=_again, args=(one, endpoint), daemon=True).start()
    threading.Event().wait()


def _again(one: Callable[[Endpoint], None], endpoint: Endpoint) -> None:
    while True:
        with suppress(httpx.HTTPError, OSError):
            one(endpoint)


def _packed(endpoint: Endpoint) -> None:
    """Three gigabytes in three megabytes, without a key, with a made-up one and with the right one."""
    packed = b"".join([gzip.compress(bytes(100_000_000))] * 30)
    for key in ("none-at-all-0123", "no-key-0123456789", None):
        with endpoint.client(key) as client:
            client.post("/v1/chat/completions", content=packed, headers={"Content-Encoding": "gzip"})


def _beginnings(endpoint: Endpoint) -> None:
    with half_heads(endpoint, CONNECTIONS):
        time.sleep(20)


def _slow(endpoint: Endpoint) -> None:
    """Twenty bodies of one byte each second, for a minute."""
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {endpoint.key}\r\n"
        "Content-Length: 100000\r\n\r\n"
    )
    wires = [endpoint.connect() for _ in range(20)]
    try:
        for wire in wires:
            wire.sendall(head.encode())
        for _ in range(60):
            for wire in wires:
                wire.sendall(b" ")
            time.sleep(1)
    finally:
        for wire in wires:
            wire.close()


def _pictures(endpoint: Endpoint) -> None:
    """Too many, too large, and one at an address of this machine."""
    for content in (chat(png(8)) * 2000, chat(png(16_000)), chat("http://127.0.0.1:1/a.png")):
        with endpoint.client() as client:
            client.post(
                "/v1/chat/completions", json={"model": "tiny", "messages": [{"role": "user", "content": content}]}
            )
