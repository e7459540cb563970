"""An engine that ends when it is idle and starts again for the next request, behind the door."""

import asyncio
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from dflash_deploy.serve.door.awake import Awake, WakeTimes
from dflash_deploy.serve.gateway.asgi import Message, Receive, Scope, Send
from dflash_deploy.serve.gateway.health import check
from tests.support.commands import HANGS
from tests.support.door import KEY, Door, opened, until

IDLE = "0.02"  # minutes


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    """A door whose engine falls asleep after 1.2 seconds."""
    with opened(tmp_path, IDLE_MINUTES=IDLE) as made:
        yield made


def health(door: Door) -> httpx.Response:
    return door.request("GET", "/health", key="")


def asleep(door: Door) -> bool:
    return bool(health(door).json() == {"status": "asleep"})


def engines(door: Door) -> list[str]:
    return Path(f"/proc/{door.process.pid}/task/{door.process.pid}/children").read_text().split()


def said(door: Door) -> str:
    assert door.process.stdout is not None
    door.process.terminate()
    return door.process.stdout.read()


def test_an_idle_engine_ends_and_the_endpoint_stays_open(door: Door) -> None:
    models = door.request("GET", "/v1/models").json()
    until(lambda: asleep(door))
    # it says so only when the memory is free
    assert engines(door) == []
    assert health(door).status_code == 200
    # what clients and dashboards ask again and again does not wake it, nor does anyone without a key
    assert door.request("GET", "/v1/models").json()["target"] == models["target"]
    assert "\ndflash_asleep 1\n" in door.request("GET", "/metrics").text
    assert door.request("GET", "/slots").status_code == 503
    assert door.request("POST", "/v1/chat/completions", key="", content=b"{}").status_code == 401
    assert check(int(door.url.rpartition(":")[2]), {"VLLM_API_KEY": KEY}, door.place / "health", now=time.time()) == ""
    assert engines(door) == []
    # only an engine counts the bytes
    assert door.request("POST", "/echo", content=b"12345").json()["body"] == 5
    assert re.search(r"the engine is awake after \d\.\d s", said(door))


def test_no_request_is_lost_that_comes_while_it_falls_asleep_or_wakes(door: Door) -> None:
    until(lambda: asleep(door))
    chat = {"messages": [{"role": "user", "content": "1"}], "stream": True}
    (door.place / "go").touch()

    def ask(number: int) -> str:
        # some while it wakes, and some while it falls asleep again
        time.sleep(number * 0.06)
        answer = door.request("POST", "/v1/chat/completions", json=chat)
        whole = answer.status_code == 200 and answer.text.rstrip().endswith("data: [DONE]")
        return "" if whole else f"{number}: {answer.status_code} {answer.text}"

    with ThreadPoolExecutor(100) as pool:
        assert [lost for lost in pool.map(ask, range(100)) if lost] == []


def test_an_answer_keeps_it_awake(door: Door) -> None:
    with httpx.Client(headers={"x-api-key": KEY}, timeout=HANGS) as client:
        with client.stream("POST", f"{door.url}/stream") as response:
            lines = response.iter_lines()
            begun = time.monotonic()
            while time.monotonic() - begun < 3:
                next(lines)
            assert not asleep(door)
        until(lambda: asleep(door))


def test_an_engine_that_cannot_wake_says_so_and_is_tried_again(door: Door) -> None:
    until(lambda: asleep(door))
    (door.place / "broken").touch()
    failed = door.request("POST", "/echo")
    assert failed.status_code == 503
    assert "ended with exit code 5 when a request woke it" in failed.json()["error"]["message"]
    assert failed.headers["retry-after"] == "30"
    # probes learn of it, and the next request does not try at once
    assert health(door).status_code == 503
    (door.place / "broken").unlink()
    assert door.request("POST", "/echo").status_code == 503
    until(lambda: door.request("POST", "/echo").status_code == 200)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_door_while_the_engine_is_asleep(door: Door, number: int) -> None:
    until(lambda: engines(door) == [])
    door.process.send_signal(number)
    assert door.process.wait(HANGS) == 0


def test_a_request_does_not_wait_for_ever_and_a_later_one_finds_it_awake() -> None:
    ready = threading.Event()

    async def engine(scope: Scope, receive: Receive, send: Send) -> None:
        status = 200 if scope["path"] != "/health" or ready.is_set() else 503
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def status_of(awake: Awake, method: str = "POST", path: str = "/v1/responses") -> int:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        await awake({"type": "http", "method": method, "path": path, "headers": []}, receive, send)
        return int(sent[0]["status"])

    async def start() -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(1000)")

    async def story() -> None:
        awake = Awake(engine, start, b"Bearer x", WakeTimes(idle=0.2, held=0.3))
        running = asyncio.create_task(awake.run())
        while await status_of(awake, "GET", "/slots") != 503:
            await asyncio.sleep(0.05)
        assert await status_of(awake) == 503
        # counters that stand still would look like a hang
        assert await status_of(awake, "GET", "/metrics") == 503
        ready.set()
        while await status_of(awake) != 200:
            await asyncio.sleep(0.05)
        awake.signal(signal.SIGTERM)
        assert await running in {0, 128 + signal.SIGTERM}

    asyncio.run(asyncio.wait_for(story(), HANGS))
