"""The limit of requests in flight of a key under many clients, as the engine behind the door sees it."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from dflash_deploy.serve.api_keys import ApiKey
from dflash_deploy.serve.gateway.keys import document_of
from tests.support.commands import HANGS
from tests.support.door import Door, opened

ALICE = "key-of-alice-0123456789"
CLIENTS, EACH, LIMIT = 32, 6, 4
OF_ALICE = {"Authorization": f"Bearer {ALICE}"}


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    """A gateway with a key that has a limit."""
    keys = tmp_path / "keys.json"
    keys.write_text(document_of([ApiKey("alice", ALICE, "all", in_flight=LIMIT)]))
    with opened(tmp_path, DFLASH_KEYS_FILE=str(keys)) as made:
        yield made


def most_at_once(door: Door) -> int:
    """The most requests that the engine worked on at the same time."""
    spans = [line.split() for line in (door.place / "spans").read_text().splitlines()]
    steps = sorted([(float(begin), 1) for begin, _ in spans] + [(float(end), -1) for _, end in spans])
    most = now = 0
    for _, step in steps:
        now += step
        most = max(most, now)
    return most


async def client(session: aiohttp.ClientSession, door: Door, seen: Counter[int]) -> None:
    """Requests one after the other, each repeated until it is admitted."""
    for _ in range(EACH):
        status = 429
        while status == 429:
            async with session.post(f"{door.url}/slow", data=b"{}") as answer:
                status = answer.status
                seen[status] += 1
                if status == 429:
                    assert answer.headers["Retry-After"] == "1"
                    assert (await answer.json())["error"]["code"] == "rate_limit_exceeded"
                    # sooner than it says: the limit must hold under pressure
                    await asyncio.sleep(0.05)


async def all_clients(door: Door) -> Counter[int]:
    seen = Counter[int]()
    async with aiohttp.ClientSession(headers=OF_ALICE, timeout=aiohttp.ClientTimeout(HANGS)) as session:
        await asyncio.gather(*(client(session, door, seen) for _ in range(CLIENTS)))
    return seen


def test_32_clients_never_exceed_the_limit(door: Door) -> None:
    seen = asyncio.run(all_clients(door))
    assert (seen[200], set(seen)) == (CLIENTS * EACH, {200, 429})
    # all of the limit is used, and no more
    assert most_at_once(door) == LIMIT


def test_requests_whose_clients_left_no_longer_count(door: Door) -> None:
    async def statuses() -> list[int]:
        timeout = aiohttp.ClientTimeout(HANGS)
        async with aiohttp.ClientSession(headers=OF_ALICE, timeout=timeout) as session:
            streams = [await session.post(f"{door.url}/stream", data=b"") for _ in range(LIMIT)]
            refused = await session.post(f"{door.url}/slow", data=b"{}")
            for stream in streams:
                stream.close()
            seen = Counter[int]()
            await asyncio.gather(*(client(session, door, seen) for _ in range(LIMIT)))
            return [*(stream.status for stream in streams), refused.status, seen[200]]

    assert asyncio.run(statuses()) == [200] * LIMIT + [429, LIMIT * EACH]
