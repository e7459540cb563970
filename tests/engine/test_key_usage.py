"""Keys with names before the real vLLM: what is counted by name is what the engine has counted, to the token."""

import asyncio
from collections import Counter
from collections.abc import Mapping

import aiohttp

from dflash_deploy.operations.key_file import key
from dflash_deploy.operations.keys import usage_of_keys
from tests.support.cli import dflash
from tests.support.server import Server

NAMES = ("alice", "bob", "carol")
REQUESTS = 240
AT_ONCE = 8


def by_name(server: Server) -> Mapping[str, Counter[str]]:
    usage = usage_of_keys(server.directory).keys
    return {
        used.name: Counter(
            prompt=used.prompt_tokens, generation=used.generation_tokens, good=used.requests.get("200", 0)
        )
        for used in usage
    }


async def ask(session: aiohttp.ClientSession, gate: asyncio.Semaphore, number: int, value: str, model: str) -> None:
    """One request of every kind in turn: answers and streams of chats, completions and Anthropic's messages."""
    chat = [{"role": "user", "content": f"Count from 1 to {number % 9 + 2}."}]
    path, body = (
        ("v1/chat/completions", {"messages": chat}),
        ("v1/chat/completions", {"messages": chat, "stream": True}),
        ("v1/chat/completions", {"messages": chat, "stream": True, "stream_options": {"include_usage": True}}),
        ("v1/completions", {"prompt": "1 2 3", "stream": True}),
        # not with `n`: vLLM counts a prompt once for each of its answers, and states it once
        ("v1/completions", {"prompt": ["1 2", "3 4"], "temperature": 1}),
        ("v1/messages", {"messages": chat, "stream": number % 12 == 5}),
    )[number % 6]
    asked = {"model": model, "max_tokens": number % 7 + 1, **body}
    async with gate, session.post(path, json=asked, headers={"Authorization": f"Bearer {value}"}) as response:
        text = await response.text()
        assert response.status == 200, text
        if path == "v1/chat/completions" and asked.get("stream"):
            assert ('"usage":{' in text) is ("stream_options" in body)


def test_the_sums_by_name_are_the_engines_own(drafting: Server) -> None:
    for name in NAMES:
        dflash("keys", "add", name, at=drafting.directory).succeeded()
    try:
        values = [key(drafting.directory, name).key.reveal() for name in NAMES]
        before, owners = drafting.counted_tokens(), by_name(drafting)["owner"]
        with drafting.connect() as endpoint:
            url, model = endpoint.url, endpoint.model

        async def all_of_them() -> None:
            gate = asyncio.Semaphore(AT_ONCE)
            async with aiohttp.ClientSession(f"{url}/") as session:
                waiting = (ask(session, gate, number, values[number % 3], model) for number in range(REQUESTS))
                await asyncio.gather(*waiting)

        asyncio.run(all_of_them())
        counted, after = by_name(drafting), drafting.counted_tokens()
        assert [counted[name]["good"] for name in NAMES] == [REQUESTS / 3] * 3
        total = sum((counted[name] for name in NAMES), Counter[str]())
        assert counted["owner"]["generation"] == owners["generation"]
        assert (total["prompt"], total["generation"]) == (
            after["prompt"] - before["prompt"],
            after["generation"] - before["generation"],
        )
    finally:
        for name in NAMES:
            dflash("keys", "revoke", name, at=drafting.directory).succeeded()
