"""A hang is requests in flight, silence, and counters that do not move. A long prompt and a slow client are none."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from dflash_deploy.serve.gateway import progress, reply
from dflash_deploy.serve.gateway.asgi import Message, Receive, Scope, Send
from dflash_deploy.serve.gateway.auth import DenyByDefault
from dflash_deploy.serve.gateway.progress import Silence

LIMIT = 100.0


def hangs(silence: Silence, now: float, counters: str | None) -> bool:
    """What /health finds at one moment."""
    return silence.needs_counters(now, LIMIT) and silence.hangs(now, LIMIT, counters)


def probed(silence: Silence, until: float, counters: Callable[[float], str | None]) -> float | None:
    """When a probe every five seconds first says that the engine hangs; `None` if it never does."""
    return next((now for now in map(float, range(0, int(until), 5)) if hangs(silence, now, counters(now))), None)


def waiting() -> Silence:
    silence = Silence()
    silence.begin(0.0)
    return silence


def test_silent_requests_and_counters_that_stay_are_a_hang_at_the_limit() -> None:
    assert probed(waiting(), 500, lambda now: "same") == LIMIT


def test_an_engine_that_does_not_even_show_its_counters_hangs_too() -> None:
    assert probed(waiting(), 500, lambda now: None) == LIMIT


def test_a_long_prompt_moves_the_counters_and_is_no_hang() -> None:
    assert probed(waiting(), 5000, lambda now: f"step {now // 60}") is None


def test_counters_that_come_late_count() -> None:
    # a batch takes half a minute, and the engine answers /metrics only between two batches
    assert probed(waiting(), 5000, lambda now: f"step {now // 30}" if now % 30 == 0 else None) is None


def test_a_hang_after_the_last_step_is_found_a_limit_later() -> None:
    # the probe at 405 s is the first that looks again after the step at 395 s
    assert probed(waiting(), 900, lambda now: f"step {min(now, 400.0)}") == 405 + LIMIT


def test_without_counters_silence_says_nothing() -> None:
    assert probed(waiting(), 5000, lambda now: "") is None


def test_an_idle_engine_is_never_asked() -> None:
    assert not Silence().needs_counters(10_000.0, LIMIT)
    assert not waiting().needs_counters(LIMIT / 20, LIMIT)
    assert not waiting().needs_counters(10_000.0, 0.0)


def test_after_an_answer_the_engine_is_well_again() -> None:
    silence = waiting()
    assert probed(silence, 500, lambda now: "same") == LIMIT
    silence.moved(505.0)
    assert not hangs(silence, 510.0, "same")
    # and hangs again if nothing follows
    assert not hangs(silence, 520.0, "same")
    assert hangs(silence, 505.0 + LIMIT, "same")


def test_clients_that_give_up_and_come_again_do_not_hide_a_hang() -> None:
    silence, said = Silence(), []
    for start in range(0, 300, 30):
        # each waits for 20 s, and nobody for 10 s
        silence.begin(float(start))
        said += [hangs(silence, float(now), "same") for now in range(start, start + 20, 5)]
        silence.end(float(start + 20))
        said.append(hangs(silence, start + 25.0, "same"))
    # 5 times 20 s are the limit; without a request in flight nothing hangs
    assert next(number for number, each in enumerate(said) if each) == 5 * 5
    assert not any(said[4::5])


@dataclass
class Engine:
    """An application whose answers wait for `gate`, with one counter; with `generates`, only those of chats."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    steps: int = 0
    shows: bool = True
    asked: int = 0
    generates: bool = False
    generated: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        text = b""
        if scope["path"] == "/metrics":
            self.asked += 1
            text = f'# HELP x\nvllm:iteration_tokens_total_count{{engine="0"}} {self.steps}\n'.encode()
            if not self.shows:
                await asyncio.Event().wait()
        elif self.generates and scope["path"] == "/v1/completions":
            self.generated += 1
        elif scope["method"] == "POST":
            more = True
            while more:
                more = (await receive()).get("more_body", False)
            await self.gate.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": text})


class Clock:
    """The monotonic clock, set by hand."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "monotonic", made)
    monkeypatch.setattr(reply, "monotonic", made)
    monkeypatch.setattr(progress, "SAMPLE", 0.01)
    return made


KEY = "key-of-the-owner-0123"
OWNER = [(b"authorization", f"Bearer {KEY}".encode())]


async def answer(
    door: DenyByDefault, method: str, path: str, receive: Receive, send: Send | None = None
) -> list[Message]:
    sent: list[Message] = []

    async def keep(message: Message) -> None:
        sent.append(message)

    headers = OWNER if method == "POST" else []
    await door({"type": "http", "method": method, "path": path, "headers": headers}, receive, send or keep)
    return sent


async def whole() -> Message:
    return {"type": "http.request", "body": b"{}", "more_body": False}


async def health(door: DenyByDefault) -> int:
    return int((await answer(door, "GET", "/health", whole))[0]["status"])


def run(engine: Engine, story: Callable[[DenyByDefault], Awaitable[None]], limit: str = "100") -> None:
    async def told() -> None:
        await story(DenyByDefault(engine, {"VLLM_API_KEY": KEY, "HANG_SECONDS": limit}))

    asyncio.run(told())


async def posted(
    door: DenyByDefault, receive: Receive = whole, send: Send | None = None
) -> asyncio.Task[list[Message]]:
    """A request in flight: everything that it can do without the engine is done."""
    request = asyncio.create_task(answer(door, "POST", "/v1/chat/completions", receive, send))
    for _ in range(20):
        await asyncio.sleep(0)
    return request


@pytest.mark.parametrize("shows", [True, False])
def test_health_is_503_while_it_hangs_and_200_after(clock: Clock, shows: bool) -> None:
    engine = Engine(shows=shows)

    async def story(door: DenyByDefault) -> None:
        request = await posted(door)
        seen = []
        for _ in range(11):
            seen.append(await health(door))
            clock.now += 10
        assert seen == [200] * 10 + [503]
        sent = await answer(door, "GET", "/health", whole)
        assert b'"code": "engine_hangs"' in sent[1]["body"]
        assert b"has done nothing for 100 s" in sent[1]["body"]
        engine.gate.set()
        await request
        assert await health(door) == 200

    run(engine, story)


def test_one_request_that_never_ends_is_no_hang_while_others_are_answered(clock: Clock) -> None:
    engine = Engine(generates=True)

    async def story(door: DenyByDefault) -> None:
        request = await posted(door)
        for _ in range(50):
            assert await health(door) == 200
            clock.now += 10
        # once in each limit
        assert 3 <= engine.generated <= 5
        request.cancel()

    run(engine, story)


def test_counters_that_move_keep_it_at_200(clock: Clock) -> None:
    engine = Engine()

    async def story(door: DenyByDefault) -> None:
        request = await posted(door)
        for _ in range(50):
            assert await health(door) == 200
            clock.now += 50
            engine.steps += 1
        engine.gate.set()
        await request

    run(engine, story)


def test_0_switches_it_off(clock: Clock) -> None:
    engine = Engine()

    async def story(door: DenyByDefault) -> None:
        request = await posted(door)
        for _ in range(10):
            assert await health(door) == 200
            clock.now += 1000
        assert engine.asked == 0
        request.cancel()

    run(engine, story, "0")


def test_a_client_that_sends_its_body_slowly_is_no_hang(clock: Clock) -> None:
    async def never_whole() -> Message:
        if clock.now > 1000:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": b"{", "more_body": True}

    async def story(door: DenyByDefault) -> None:
        clock.now += 1
        request = await posted(door, never_whole)
        for _ in range(20):
            assert await health(door) == 200
            clock.now += 50
        request.cancel()

    run(Engine(), story)


def test_a_client_that_does_not_read_its_answer_is_no_hang(clock: Clock) -> None:
    async def blocked(message: Message) -> None:
        await asyncio.Event().wait()

    engine = Engine()
    engine.gate.set()

    async def story(door: DenyByDefault) -> None:
        request = await posted(door, send=blocked)
        for _ in range(20):
            assert await health(door) == 200
            clock.now += 50
        request.cancel()

    run(engine, story)
