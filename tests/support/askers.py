"""Clients that ask all the time, and what happened to each of their requests."""

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import aiohttp

WHOLE = "whole"


@dataclass(frozen=True)
class Asked:
    """One request: when it was sent, how long it took in seconds, and `whole` or what was wrong with it."""

    at: float
    seconds: float
    outcome: str


@dataclass
class Askers:
    """The requests that have ended. `key` is asked before each request; each client sends `turns`, or does not end. All
    requests begin with the system prompt `system`, if there is one."""

    url: str
    model: str
    key: Callable[[], str]
    max_tokens: int = 24
    patience: float = 60.0
    turns: int | None = None
    system: str = ""
    asked: list[Asked] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)

    def outcomes(self) -> Counter[str]:
        """How many requests had each outcome."""
        return Counter(asked.outcome for asked in list(self.asked))

    def errors(self) -> list[Asked]:
        """The requests that did not end whole."""
        return [asked for asked in list(self.asked) if asked.outcome != WHOLE]

    async def _client(self, session: aiohttp.ClientSession, number: int) -> None:
        turn = 0
        while not self.stopped.is_set() if self.turns is None else turn < self.turns:
            turn += 1
            began = time.monotonic()
            outcome = await self._outcome(session, f"Client {number}, turn {turn}: count from 1 to 20.")
            self.asked.append(Asked(began, time.monotonic() - began, outcome))
            if outcome != WHOLE:
                # as a client with a retry does
                await asyncio.sleep(0.2)

    async def _outcome(self, session: aiohttp.ClientSession, text: str) -> str:
        system = [{"role": "system", "content": self.system}] if self.system else []
        body = {
            "model": self.model,
            "messages": [*system, {"role": "user", "content": text}],
            "max_tokens": self.max_tokens,
            "stream": True,
        }
        headers = {"Authorization": f"Bearer {self.key()}"}
        try:
            async with asyncio.timeout(self.patience):
                async with session.post(f"{self.url}/v1/chat/completions", json=body, headers=headers) as answer:
                    if answer.status != 200:
                        return f"status {answer.status}"
                    return _judged((await answer.read()).decode())
        except TimeoutError:
            return f"nothing for {self.patience:.0f} s"
        except aiohttp.ClientError as problem:
            return type(problem).__name__

    async def run(self, clients: int) -> None:
        """Ask with this many clients until `stopped`."""
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            await asyncio.gather(*(self._client(session, number) for number in range(clients)))


def _judged(text: str) -> str:
    """Whether a stream is whole: it ends with [DONE] and holds no error."""
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        return "stream cut off"
    if any("error" in json.loads(event) for event in events[:-1]):
        return "stream ends with an error"
    return WHOLE


@contextmanager
def asking(askers: Askers, clients: int) -> Iterator[Askers]:
    """The clients ask as long as the block runs, and finish what they asked after it."""
    thread = threading.Thread(target=lambda: asyncio.run(askers.run(clients)))
    thread.start()
    try:
        yield askers
    finally:
        askers.stopped.set()
        thread.join()
