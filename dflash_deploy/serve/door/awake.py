"""An engine that ends when no client asks, and starts again for the next request.

Engines can give their memory back themselves, but lose something by it: llama.cpp's `--sleep-idle-seconds` hangs or
crashes on a request that arrives as it falls asleep (ggml-org/llama.cpp#29689), vLLM's level 2 loses the drafter's
weights (vllm-project/vllm#52479), and its level 1 moves weights into the memory that a GB10 shares with its GPU. An
engine that has ended holds nothing. The door keeps listening, and holds the requests that wake it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from enum import Enum

from dflash_deploy.serve.gateway.asgi import App, Receive, Scope, Send, answer_error, ask_inside
from dflash_deploy.serve.gateway.keys import ASLEEP, FALLING, LIVENESS, METRICS, WAKING

# Routes that answer from asleep what the engine answered last: clients and dashboards ask them again and again.
REMEMBERED = ("/v1/models", METRICS, "/props")

# Added to the engine's last counters while it is asleep.
ASLEEP_METRIC = b"# TYPE dflash_asleep gauge\ndflash_asleep 1\n"

ENDS = 40.0  # seconds that an engine has to end after SIGTERM before it is killed
ASKS = 0.1  # seconds after which an engine that starts is asked again
Start = Callable[[], Awaitable[asyncio.subprocess.Process]]


class Phase(Enum):
    """What the engine does."""

    AWAKE = "awake"
    FALLING = FALLING
    ASLEEP = ASLEEP
    WAKING = WAKING


@dataclass(frozen=True)
class WakeTimes:
    """Seconds: without a request before the engine falls asleep (`None`: never); that a request waits for an engine
    that wakes; and after a failed start until a request may begin another one."""

    idle: float | None
    held: float = 300.0
    again: float = 10.0


class Awake:
    """The engine's process, and an ASGI application that passes requests on to it, after waking it if it is asleep.

    GET and HEAD wake nothing. If the engine ends while it wakes, the door stays open, and a later request tries again.
    """

    def __init__(self, app: App, start: Start, authorization: bytes, times: WakeTimes) -> None:
        """`app` passes requests on to the engine that `start` starts; `authorization` opens the engine."""
        self._app, self._start, self._authorization, self._times = app, start, authorization, times
        self._phase = Phase.AWAKE
        self._engine: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._wakes: asyncio.Task[str] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight, self._quiet_since = 0, time.monotonic()
        self._answers: Mapping[str, bytes] = {}
        self._failed, self._failed_at = "", 0.0
        self._stopping = False
        self._over: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run(self) -> int:
        """Run the engine until it ends by itself or by a signal; returns its exit code, 128 + the number of a signal.

        0 if a signal comes while it is asleep.
        """
        self._follow(await self._start())
        if self._times.idle is not None:
            self._keep(self._doze(self._times.idle))
        code = await self._over
        return code if code >= 0 else 128 - code

    def signal(self, number: int) -> None:
        """Pass a signal on to the engine; without one, end."""
        self._stopping = True
        if self._phase is Phase.ASLEEP:
            self._end(0)
        elif self._engine is not None:
            with contextlib.suppress(ProcessLookupError):
                self._engine.send_signal(number)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        if self._phase is not Phase.AWAKE:
            if scope["method"] in {"GET", "HEAD"}:
                await self._answer_for_it(scope, send)
                return
            if said := await self._wake():
                await answer_error(scope, send, 503, said, "engine_unavailable", [(b"retry-after", b"30")])
                return
        self._in_flight += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._in_flight -= 1
            if scope["method"] not in {"GET", "HEAD"}:
                self._quiet_since = time.monotonic()

    async def _answer_for_it(self, scope: Scope, send: Send) -> None:
        """Answer a GET or HEAD while the engine cannot; no counters while it wakes: the same ones look like a hang."""
        path, kind = scope["path"], b"application/json"
        body = self._answers.get(path)
        if path == LIVENESS and not self._failed:
            body = json.dumps({"status": self._phase.value}).encode()
        elif path == METRICS and body is not None:
            body, kind = (None if self._phase is Phase.WAKING else body + ASLEEP_METRIC), b"text/plain; version=0.0.4"
        if body is None:
            said = self._failed or "the engine is asleep; a request that generates wakes it"
            await answer_error(scope, send, 503, said, "engine_unavailable", [(b"retry-after", b"5")])
            return
        headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def _doze(self, idle: float) -> None:
        """Let the engine fall asleep whenever it is due."""
        while True:
            await asyncio.sleep(min(idle / 4, 5.0))
            if self._is_due(idle):
                await self._fall_asleep(idle)

    def _is_due(self, idle: float) -> bool:
        quiet = self._in_flight == 0 and time.monotonic() - self._quiet_since >= idle
        return quiet and self._phase is Phase.AWAKE and not self._stopping

    async def _fall_asleep(self, idle: float) -> None:
        answers = {}
        for path in REMEMBERED:
            status, body = await self._ask(path)
            if status == 200:
                answers[path] = body
        if REMEMBERED[0] not in answers:
            # it still loads
            self._quiet_since = time.monotonic()
            return
        async with self._turn:
            # a request may have come meanwhile; from here on none is passed on
            if not self._is_due(idle) or self._engine is None:
                return
            self._phase, self._answers = Phase.FALLING, answers
            await _ended(self._engine)
            self._engine, self._phase = None, Phase.ASLEEP
        print(f"dflash: the engine is asleep after {idle:.0f} s without a request; its memory is free", flush=True)
        if self._stopping:
            self._end(0)

    async def _wake(self) -> str:
        """Wait until the engine answers; returns why it does not, or an empty text."""
        if self._failed and time.monotonic() - self._failed_at < self._times.again:
            return self._failed
        if self._wakes is None or self._wakes.done():
            self._wakes = asyncio.create_task(self._start_again())
        done, _ = await asyncio.wait({self._wakes}, timeout=self._times.held)
        return self._wakes.result() if done else f"the engine has not woken within {self._times.held:.0f} s"

    async def _start_again(self) -> str:
        async with self._turn:
            if self._phase is Phase.AWAKE:
                return ""
            self._phase, begun = Phase.WAKING, time.monotonic()
            print("dflash: a request wakes the engine", flush=True)
            engine = self._engine = await self._start()
            while engine.returncode is None and (await self._ask(LIVENESS))[0] != 200:
                await asyncio.sleep(ASKS)
            if engine.returncode is not None:
                return self._fail(engine.returncode)
            self._phase, self._failed, self._quiet_since = Phase.AWAKE, "", time.monotonic()
            self._follow(engine)
            print(f"dflash: the engine is awake after {self._quiet_since - begun:.1f} s", flush=True)
            return ""

    def _fail(self, code: int) -> str:
        """The engine ended while it woke."""
        self._engine, self._phase, self._failed_at = None, Phase.ASLEEP, time.monotonic()
        self._failed = f"the engine ended with exit code {code} when a request woke it; its log says why"
        print(f"dflash: {self._failed}", flush=True)
        if self._stopping:
            self._end(code)
        return self._failed

    async def _ask(self, path: str) -> tuple[int, bytes]:
        return await ask_inside(self._app, {"type": "http"}, path, self._authorization)

    def _follow(self, engine: asyncio.subprocess.Process) -> None:
        self._engine = engine
        self._keep(self._watch(engine))
        if self._stopping:
            # the signal came while it was being started
            self.signal(signal.SIGTERM)

    async def _watch(self, engine: asyncio.subprocess.Process) -> None:
        code = await engine.wait()
        if self._phase is Phase.AWAKE:
            self._end(code)

    def _end(self, code: int) -> None:
        if not self._over.done():
            self._over.set_result(code)

    def _keep(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _ended(engine: asyncio.subprocess.Process) -> None:
    """End an engine without requests."""
    with contextlib.suppress(ProcessLookupError):
        engine.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(engine.wait(), ENDS)
        except TimeoutError:
            engine.kill()
            await engine.wait()
