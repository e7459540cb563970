"""Limits of a key hold, a key opens its scope and nothing else, and /metrics says so."""

import asyncio

import pytest

from dflash_deploy.serve.gateway.auth import DenyByDefault
from tests.support.metered import ALICE, CHAT, KEYS, OWNER, SCRAPER, Engine, ask, asked, used

BOB = "key-of-bob-0123456789"


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


def test_the_sequences_of_a_request_count_as_requests() -> None:
    async def story() -> list[int]:
        gate = engine.gate = asyncio.Event()
        first = asyncio.create_task(asked(door, b'{"n": 2}', key=BOB))
        while not engine.bodies:
            await asyncio.sleep(0)
        # one of three is left
        statuses = [(await asked(door, b'{"n": 2}', key=BOB))[0]]
        gate.set()
        statuses += [(await first)[0], (await asked(door, b'{"prompt": ["a", "b", "c"]}', key=BOB))[0]]
        return [*statuses, (await asked(door, b'{"prompt": ["a", "b"], "n": 2}', key=BOB))[0]]

    engine = Engine([b"{}"])
    door = DenyByDefault(engine, KEYS | {"DFLASH_API_KEYS": f"bob:{BOB}:in_flight=3"})
    assert asyncio.run(story()) == [429, 200, 200, 400]


def test_no_key_has_more_sequences_in_a_request_than_an_engine_serves() -> None:
    engine = Engine([b"{}"])
    door = DenyByDefault(engine, KEYS)
    assert ask(door, b'{"n": 257}', key=OWNER)[0] == 400
    assert ask(door, b'{"n": 16, "prompt": ["a", "b"]}', key=OWNER)[0] == 200


@pytest.mark.parametrize("path", ["/tokenize", "/v1/completions", CHAT])
def test_a_text_that_cannot_fit_does_not_reach_the_engine(path: str) -> None:
    engine = Engine([b"{}"])
    door = DenyByDefault(engine, KEYS | {"MAX_MODEL_LEN": "100"})
    status, body, _ = asyncio.run(asked(door, b'{"prompt": "%b"}' % (b"x" * 1601), key=OWNER, path=path))
    assert status == 400
    assert b"cannot fit the context of 100 tokens" in body
    assert not engine.bodies
    assert asyncio.run(asked(door, b'{"prompt": "%b"}' % (b"x" * 1600), key=OWNER, path=path))[0] == 200


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
