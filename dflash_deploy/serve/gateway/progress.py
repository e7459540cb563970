"""Whether the engine hangs: requests wait for it, and neither an answer nor one of its counters moves.

An engine whose core hangs still answers /health, so that routers and probes keep sending requests to it. The gateway
sees every answer. If all are silent, it compares the engine's own counters in /metrics: a long prompt or a long answer
that is not streamed is silent too, but moves them with each step. vLLM's change with each chunk of a prompt (use of the
cache), and llama.cpp answers /metrics between two batches. Last, it asks for a token: a single request may wait.
"""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus
from time import monotonic

from dflash_deploy.serve.gateway.asgi import App, Scope, ask_inside
from dflash_deploy.serve.gateway.keys import METRICS

LOOKS_AFTER = 0.1  # the part of the limit after which /health compares the engine's counters: before, it costs nothing
PROVEN = 0.8  # the part of the limit in which the counters must not change
SAMPLE = 1.0  # seconds that /health waits for the counters, and for a token; a later answer is for the next /health
_COUNTS = re.compile(rb"^(?:vllm|sglang|llamacpp):.*$", re.MULTILINE)


@dataclass
class Silence:
    """How long nothing has moved while requests wait for the engine. Times are seconds of the monotonic clock.

    Waiting times add up: clients that give up and ask again do not make a hang look young.
    """

    waiting: int = 0
    before: float = 0.0
    since: float = 0.0
    counters: str | None = None
    looked_at: float | None = None

    def lasts(self, now: float) -> float:
        """The seconds that requests have waited since something moved."""
        return self.before + (now - self.since if self.waiting else 0.0)

    def begin(self, now: float) -> None:
        """One more request waits for the engine."""
        if not self.waiting:
            self.since = now
        self.waiting += 1

    def end(self, now: float) -> None:
        """One request less waits for it."""
        self.waiting -= 1
        if not self.waiting:
            self.before += now - self.since

    def moved(self, now: float, *, ends: bool = False) -> None:
        """An answer or a counter has moved. `ends`: with one request less that waits."""
        self.waiting -= ends
        self.before, self.since, self.counters, self.looked_at = 0.0, now, None, None

    def needs_counters(self, now: float, limit: float) -> bool:
        """Whether to compare the engine's counters now. `limit` is in seconds; 0 switches the check off."""
        return limit > 0 and self.waiting > 0 and self.lasts(now) >= LOOKS_AFTER * limit

    def hangs(self, now: float, limit: float, counters: str | None) -> bool:
        """Whether the engine hangs. `counters`: their digest; empty if it has none, `None` if it does not answer."""
        if counters == "":
            # without counters, silence may be one long answer
            return False
        if counters is not None:
            if self.counters not in {None, counters}:
                self.moved(now)
            self.counters = counters
        lasts = self.lasts(now)
        if self.looked_at is None:
            self.looked_at = lasts
        return self.waiting > 0 and lasts >= limit and lasts - self.looked_at >= PROVEN * limit


class Progress:
    """Watches the requests that an application serves."""

    def __init__(self, app: App, limit: float, authorization: bytes, model: str) -> None:
        """`limit`: seconds without progress that are a hang, 0 for never. `authorization`: what opens the engine."""
        self._app = app
        self._limit = limit
        self._authorization = authorization
        self.silence = Silence()
        self._asked: asyncio.Task[str] | None = None
        self._token = json.dumps({"model": model, "prompt": "1", "max_tokens": 1}).encode()
        self._generates: asyncio.Task[bool] | None = None

    async def hangs(self, scope: Scope) -> bool:
        """Whether the engine hangs, at a request of /health with this scope."""
        if not self.silence.needs_counters(monotonic(), self._limit):
            return False
        if self._asked is None:
            self._asked = asyncio.create_task(self._counters(scope))
        done, _ = await asyncio.wait({self._asked}, timeout=SAMPLE)
        counters = None
        if done:
            counters, self._asked = self._asked.result(), None
        return self.silence.hangs(monotonic(), self._limit, counters) and not await self._answers(scope)

    async def _answers(self, scope: Scope) -> bool:
        """Whether the engine generates a token now: a grammar that vLLM compiles keeps only its own request waiting."""
        if self._generates is None:
            self._generates = asyncio.create_task(self._generate(scope))
        done, _ = await asyncio.wait({self._generates}, timeout=SAMPLE)
        if not done:
            return False
        answers, self._generates = self._generates.result(), None
        if answers:
            self.silence.moved(monotonic())
        return answers

    async def _generate(self, scope: Scope) -> bool:
        with suppress(Exception):
            # whatever it raises: a request of a client would show it
            status, _ = await ask_inside(self._app, scope, "/v1/completions", self._authorization, self._token)
            return status == HTTPStatus.OK
        return False

    async def _counters(self, scope: Scope) -> str:
        """A digest of the engine's counters; empty if it has none, or does not show them."""
        status, text = 0, b""
        with suppress(Exception):
            # whatever it raises: a request of a client would show it
            status, text = await ask_inside(self._app, scope, METRICS, self._authorization)
        found = _COUNTS.findall(text) if status == 200 else []
        return sha256(b"\n".join(found)).hexdigest() if found else ""
