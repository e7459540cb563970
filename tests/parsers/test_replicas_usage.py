"""Keys with names in front of two real engines: what each used is what the engines counted, and limits hold on both."""

import asyncio
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import httpx
import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.operations.key_file import key
from tests.support.cli import dflash
from tests.support.commands import eventually
from tests.support.two_engines import HANGS, door, engine_tokens, engines, keys, router, used

NAMES = ("kate", "leo", "mia")
REQUESTS = 1000
CLIENTS = 32
MIB = 1 << 20
CHAT, COMPLETIONS, MESSAGES = "v1/chat/completions", "v1/completions", "v1/messages"


def total(directory: Path, *names: str) -> Counter[str]:
    """What keys of these names used together, and how many answers they got."""
    found = Counter[str]()
    for name in names:
        one = used(directory, name)
        found.update(prompt=one.prompt_tokens, generation=one.generation_tokens, answers=one.requests.get("200", 0))
    return found


def asked(number: int) -> tuple[str, dict[str, object]]:
    """One of all kinds of requests, in turn: answers and streams, with and without their usage asked for."""
    chat = [{"role": "user", "content": f"Conversation {number % 50}: count from 1 to {number % 9 + 2}."}]
    path, body = (
        (CHAT, {"messages": chat}),
        (CHAT, {"messages": chat, "stream": True}),
        (CHAT, {"messages": chat, "stream": True, "stream_options": {"include_usage": True}}),
        (COMPLETIONS, {"prompt": f"1 2 3 {number % 9}", "stream": True}),
        (COMPLETIONS, {"prompt": "1 2", "temperature": 1}),
        (CHAT, {"messages": chat, "stream": True, "n": 2}),
        (MESSAGES, {"messages": chat}),
        (MESSAGES, {"messages": chat, "stream": True}),
    )[number % 8]
    return path, {"model": "tiny", "max_tokens": number % 7 + 1, **body}


async def ask(session: aiohttp.ClientSession, gate: asyncio.Semaphore, number: int, value: str) -> int:
    path, body = asked(number)
    async with gate, session.post(path, json=body, headers={"Authorization": f"Bearer {value}"}) as response:
        text = await response.text()
        if response.status == 200 and path == CHAT and body.get("stream"):
            assert ('"usage":{' in text) is ("stream_options" in body)
            # llama.cpp states its timings once for each answer
            assert text.count('"timings":{') == body.get("n", 1)
        return response.status


def ask_all(directory: Path, values: list[str], numbers: range, at_once: int) -> Counter[int]:
    """Send these requests through the router, each with the next of the keys; return the statuses."""

    async def every() -> list[int]:
        gate = asyncio.Semaphore(at_once)
        timeout = aiohttp.ClientTimeout(total=HANGS)
        base = f"{door(directory)}/"
        async with aiohttp.ClientSession(base, timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
            return await asyncio.gather(
                *(ask(session, gate, number, values[number % len(values)]) for number in numbers)
            )

    return Counter(asyncio.run(every()))


def test_the_sums_by_name_are_those_of_the_engines(two_engines: Path) -> None:
    urls = engines(two_engines)
    with keys(two_engines, *NAMES) as values:
        # `keys add` has tried each key
        tried = total(two_engines, *NAMES)
        before, owner = [engine_tokens(url, two_engines) for url in urls], total(two_engines, "owner")
        assert ask_all(two_engines, values, range(REQUESTS), CLIENTS) == {200: REQUESTS}
        after, counted = [engine_tokens(url, two_engines) for url in urls], total(two_engines, *NAMES)
    worked = [now - then for now, then in zip(after, before, strict=True)]
    assert all(one["generation"] > 0 for one in worked)
    assert counted - tried == worked[0] + worked[1] + Counter(answers=REQUESTS)
    assert total(two_engines, "owner")["generation"] == owner["generation"]


def test_a_stream_whose_client_leaves_counts_as_far_as_it_came(two_engines: Path) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Count from 1 to 40."}], "stream": True}
    with keys(two_engines, "nora", limits=("--tokens-per-minute", "60")) as (nora,):
        tried, read = total(two_engines, "nora"), 0
        client = httpx.Client(headers={"Authorization": f"Bearer {nora}"}, timeout=HANGS)
        # straight to an engine: behind the router, it is the router that leaves
        with client, client.stream("POST", f"{engines(two_engines)[0]}/{CHAT}", json=body) as stream:
            for line in stream.iter_lines():
                read += '"content":"' in line
                if read == 3:
                    break
        eventually(lambda: used(two_engines, "nora").requests.get("cancelled") == 1)
        counted = total(two_engines, "nora") - tried
        assert counted["prompt"] > 0
        assert counted["generation"] >= read
        # and they count for the limit
        assert {ask_all(two_engines, [nora], range(1), 1).popitem()[0] for _ in range(6)} >= {429}


def test_limits_hold_over_both_engines(two_engines: Path) -> None:
    with keys(two_engines, "olga", limits=("--in-flight", "2")) as (olga,), ExitStack() as stack:
        tried = used(two_engines, "olga").requests["200"]
        for _ in range(2):
            # in flight as long as its body is awaited, on one of the engines
            began = stack.enter_context(socket.create_connection(address(engines(two_engines)[0])))
            head = (
                f"POST /{COMPLETIONS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {olga}\r\nContent-Length: 9\r\n\r\n"
            )
            began.sendall(head.encode())
        eventually(lambda: used(two_engines, "olga").in_flight == 2)
        assert ask_all(two_engines, [olga], range(CLIENTS), CLIENTS) == {429: CLIENTS}
        counted = used(two_engines, "olga").requests
        # the router repeats 429: the gateway answers it otherwise, and the door makes it 429 again
        assert counted["429"] == CLIENTS
        assert counted["200"] == tried
        stack.close()
        eventually(lambda: used(two_engines, "olga").in_flight == 0)
        assert ask_all(two_engines, [olga], range(1), 1) == {200: 1}


def address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return str(parts.hostname), parts.port or 80


@pytest.mark.parametrize("in_chunks", [False, True])
@pytest.mark.parametrize("much", [64 * MIB + 1, 100 * MIB])
def test_a_body_above_the_limit_gets_413_and_the_limit(two_engines: Path, much: int, in_chunks: bool) -> None:
    owner = Deployment.existing(two_engines).key.reveal()
    content = iter([b"x" * much]) if in_chunks else b"x" * much
    headers = {"Authorization": f"Bearer {owner}", "Content-Type": "application/json"}
    answer = httpx.post(f"{door(two_engines)}/{COMPLETIONS}", content=content, headers=headers, timeout=HANGS)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "request_too_large"
    assert not [name for name in answer.headers if "smg" in name or "dflash" in name]


def test_a_revoked_key_is_dead_on_both_engines(two_engines: Path) -> None:
    answers: list[tuple[float, str, int]] = []
    places = [*engines(two_engines), router(two_engines), door(two_engines)]
    body = {"model": "tiny", "prompt": "1", "max_tokens": 1}
    revoked = threading.Event()
    dflash("keys", "add", "pia", at=two_engines).succeeded()
    headers = {"Authorization": f"Bearer {key(two_engines, 'pia').key.reveal()}"}

    def client(url: str) -> None:
        with httpx.Client(headers=headers, timeout=HANGS) as session:
            while not revoked.is_set():
                began = time.time()
                answers.append((began, url, session.post(f"{url}/{COMPLETIONS}", json=body).status_code))

    with ThreadPoolExecutor(4 * len(places)) as clients:
        waiting = [clients.submit(client, url) for url in 4 * places]
        try:
            eventually(lambda: {url for _, url, status in list(answers) if status == 200} == set(places))
            dflash("keys", "revoke", "pia", at=two_engines).succeeded()
            # the command has written the file, and asked the endpoint
            ended = time.time()
            eventually(lambda: {url for began, url, _ in list(answers) if began > ended} == set(places))
        finally:
            revoked.set()
        for one in waiting:
            one.result()
    written = (two_engines / ".dflash" / "keys" / "keys.json").stat().st_mtime
    # the gateways read the file within a second, and the command ends once they have
    assert {status for began, _, status in answers if began > min(ended, written + 1)} == {401}
    assert {status for _, _, status in answers} == {200, 401}
