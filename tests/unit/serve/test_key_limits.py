"""Limits of a key hold, a key opens its scope and nothing else, and /metrics says so."""

import asyncio

import pytest

from dflash_deploy.serve.gateway.auth import DenyByDefault
from tests.support.metered import ALICE, CHAT, KEYS, OWNER, SCRAPER, Engine, ask, asked, used


def test_a_second_request_at_once_is_told_when_to_come_again() -> None:
    async def two() -> tuple[int, int, bytes]:
        gate = engine.gate = asyncio.Event()
        first = asyncio.create_task(asked(door))
        while not engine.bodies:
            await asyncio.sleep(0)
        refused, _, headers = await asked(door)
        gate.set()
        return (await first)[0], refused, headers[b"retry-after"]

    engine = Engine([b"{}"])
    door = DenyByDefault(engine, KEYS)
    assert asyncio.run(two()) == (200, 429, b"1")
    engine.gate = None
    assert ask(door)[0] == 200
    assert used(door).requests == {"200": 2, "429": 1}


@pytest.mark.parametrize(
    ("key", "path", "method", "status"),
    [
        (ALICE, "/metrics", "GET", 403),
        (ALICE, "/sleep", "POST", 403),
        (ALICE, CHAT, "POST", 200),
        (SCRAPER, CHAT, "POST", 403),
        (SCRAPER, "/metrics", "GET", 200),
        (SCRAPER, "/health", "GET", 200),
        (OWNER, "/sleep", "POST", 200),
    ],
)
def test_a_key_opens_its_scope_and_nothing_else(key: str, path: str, method: str, status: int) -> None:
    engine = Engine([b"{}"])
    assert ask(DenyByDefault(engine, KEYS), key=key, path=path, method=method)[0] == status
    assert len(engine.bodies) == (status == 200)


def test_requests_without_a_valid_key_are_counted() -> None:
    gateway = DenyByDefault(Engine([b"{}"]), KEYS)

    def counted() -> bytes:
        text = ask(gateway, b"", key=OWNER, path="/metrics", method="GET")[1]
        return next(line for line in text.splitlines() if line.startswith(b"dflash_refused_requests_total "))

    assert counted().endswith(b" 0.0")
    assert [ask(gateway, key="sk-another")[0] for _ in range(3)] == [401, 401, 401]
    # the liveness route needs none
    assert ask(gateway, key="sk-another", path="/health", method="GET")[0] == 200
    assert counted().endswith(b" 3.0")


def test_metrics_are_the_engines_and_the_keys_in_plain_text() -> None:
    engine = Engine()
    status, text, headers = ask(DenyByDefault(engine, KEYS), b"", key=OWNER, path="/metrics", method="GET")
    assert (status, b"content-length" in headers) == (200, False)
    assert text.startswith(b"vllm:num_requests_running 1.0\n")
    assert b"# TYPE dflash_key_requests_total counter" in text
    assert b"accept-encoding" not in engine.headers[0]
