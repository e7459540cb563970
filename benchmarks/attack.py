"""An endpoint under attack beside eight honest clients, and mixed requests by the ten thousand.

    python -m benchmarks attack mixed mixed-vllm

The attack is another process: packed bodies, beginnings of requests, slow bodies, pictures, and idle connections.
"""

from __future__ import annotations

import gzip
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import httpx
from rich.table import Table

from benchmarks.replicas import deployed
from dflash_deploy.deployment import Deployment
from tests.support.attacked import Endpoint, chat, files_of, half_heads, peak, png
from tests.support.honest import Told, load
from tests.support.llamacpp_native import processes, server_of

HONEST = 8
QUIET, ATTACKED = 60.0, 600.0
"""Seconds before and under attack."""
CONNECTIONS = 2000
MIXED_CLIENTS = 16
MIXED = {"llamacpp": 100_000, "vllm": 10_000}
"""Requests of each engine."""


def table() -> Table:
    """A row for the time before the attack and one for the attack."""
    drawn = Table(
        *("phase", "seconds", "requests", "failed", "answers that differ", "median, s", "/health at most, s"),
        *("gateway, most MB", "engine, most MB", "files of the gateway"),
        title="attack, aim: none failed, /health under 1 s, memory and files flat",
    )
    with deployed(1) as directory:
        endpoint = endpoint_at(directory)
        engine = server_of(directory)
        (gateway,) = [pid for pid, line in processes(directory).items() if " -m dflash_deploy.serve.door " in line]
        for phase, seconds in (("quiet", QUIET), ("attacked", ATTACKED)):
            with _attack(endpoint) if phase == "attacked" else nullcontext():
                told = load(endpoint, HONEST, _lasts(seconds))
                drawn.add_row(
                    *(phase, f"{seconds:.0f}", str(told.asked), str(told.failed.total()), str(told.changed.total())),
                    *(f"{told.median:.3f}", f"{max(told.health):.3f}"),
                    *(f"{peak(gateway) / 1000:.0f}", f"{peak(engine) / 1000:.0f}", str(files_of(gateway))),
                )
            _show(drawn, told)
    return drawn


def mixed(engine: str) -> Table:
    """Texts, pictures, streams, cut streams, tools and JSON at the same time, with drafts: answers that differ."""
    drawn = Table("engine", "clients", "requests", "failed", "answers that differ", title="mixed, aim: none differs")
    with deployed(1, engine) as directory:
        told = load(endpoint_at(directory), MIXED_CLIENTS, lambda told: told.asked < MIXED[engine])
    counts = (told.asked, told.failed.total(), told.changed.total())
    drawn.add_row(engine, str(MIXED_CLIENTS), *map(str, counts))
    _show(drawn, told)
    return drawn


def endpoint_at(directory: Path) -> Endpoint:
    """The endpoint of a native deployment."""
    deployment = Deployment.existing(directory)
    return Endpoint(f"http://127.0.0.1:{deployment.values['DFLASH_PORT']}", deployment.key.reveal())


def _lasts(seconds: float) -> Callable[[Told], bool]:
    until = time.monotonic() + seconds
    return lambda _: time.monotonic() < until


def _show(drawn: Table, told: Told) -> None:
    seen = [*told.failed.most_common(3), *told.changed.most_common(3)]
    drawn.caption = "; ".join([*filter(None, [str(drawn.caption or "")]), *map(str, seen)])


@contextmanager
def _attack(endpoint: Endpoint) -> Iterator[None]:
    attacker = multiprocessing.get_context("spawn").Process(target=attack, args=(endpoint,))
    attacker.start()
    try:
        yield
    finally:
        attacker.terminate()
        attacker.join()


def attack(endpoint: Endpoint) -> None:
    """All attacks at the same time, without an end."""
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
