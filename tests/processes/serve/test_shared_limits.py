"""Limits of a key over two gateways, each a process with an engine of its own, which share a directory."""

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import pytest

from dflash_deploy.serve.api_keys import ApiKey
from dflash_deploy.serve.gateway.keys import document_of
from tests.support.door import HANGS, Door, opened, until

ALICE = "key-of-alice-0123456789"
CLIENTS, EACH, LIMIT = 32, 6, 4
OF_ALICE = {"Authorization": f"Bearer {ALICE}"}


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[list[Door]]:
    """Two gateways of one deployment."""
    limits = tmp_path / "deployment" / "limits"
    keys = tmp_path / "keys.json"
    keys.write_text(document_of([ApiKey("alice", ALICE, "all", in_flight=LIMIT)]))
    with ExitStack() as stack:
        made = []
        for name in ("one", "other"):
            (place := tmp_path / name).mkdir()
            shared = {"DFLASH_KEYS_FILE": str(keys), "DFLASH_LIMITS_DIRECTORY": str(limits)}
            made.append(stack.enter_context(opened(place, **shared)))
        yield made


def most_at_once(doors: list[Door]) -> int:
    """The most requests that the engines worked on at the same time."""
    spans = [line.split() for door in doors for line in (door.place / "spans").read_text().splitlines()]
    steps = sorted([(float(begin), 1) for begin, _ in spans] + [(float(end), -1) for _, end in spans])
    most = now = 0
    for _, step in steps:
        now += step
        most = max(most, now)
    return most


async def client(session: aiohttp.ClientSession, doors: list[Door], number: int, seen: Counter[int]) -> None:
    """Requests one after the other, at the two gateways in turns, each repeated until it is admitted."""
    for turn in range(EACH):
        status = 429
        while status == 429:
            async with session.post(f"{doors[(number + turn) % 2].url}/slow", data=b"{}") as answer:
                status = answer.status
                seen[status] += 1
                if status == 429:
                    assert answer.headers["Retry-After"] == "1"
                    assert (await answer.json())["error"]["code"] == "rate_limit_exceeded"
                    # sooner than it says: the limit must hold under pressure
                    await asyncio.sleep(0.05)


async def all_clients(doors: list[Door]) -> Counter[int]:
    seen = Counter[int]()
    async with aiohttp.ClientSession(headers=OF_ALICE, timeout=aiohttp.ClientTimeout(HANGS)) as session:
        await asyncio.gather(*(client(session, doors, number, seen) for number in range(CLIENTS)))
    return seen


def test_32_clients_over_two_gateways_never_exceed_the_limit(doors: list[Door]) -> None:
    seen = asyncio.run(all_clients(doors))
    assert (seen[200], set(seen)) == (CLIENTS * EACH, {200, 429})
    # all of the limit is used, and no more
    assert most_at_once(doors) == LIMIT


def test_a_killed_gateway_with_requests_in_flight_blocks_no_other(doors: list[Door]) -> None:
    dead, other = doors

    async def status(session: aiohttp.ClientSession, door: Door) -> int:
        async with session.post(f"{door.url}/slow", data=b"{}") as answer:
            return answer.status

    async def kill() -> list[int]:
        timeout = aiohttp.ClientTimeout(HANGS)
        async with aiohttp.ClientSession(headers=OF_ALICE, timeout=timeout) as session:
            streams = [await session.post(f"{dead.url}/stream", data=b"") for _ in range(LIMIT)]
            refused = await status(session, other)
            dead.process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(dead.process.wait, HANGS)
            after = await asyncio.gather(*(status(session, other) for _ in range(LIMIT)))
            for stream in streams:
                stream.close()
            return [*(stream.status for stream in streams), refused, *after]

    assert asyncio.run(kill()) == [200] * LIMIT + [429] + [200] * LIMIT


def test_an_engine_never_sees_the_directory(doors: list[Door]) -> None:
    until((doors[0].place / "environment").exists)
    assert "DFLASH_LIMITS_DIRECTORY" not in json.dumps(doors[0].environment)
