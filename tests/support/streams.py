"""Clients that ask for one answer after the other, and how each of their answers ended."""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import httpx

from dflash_deploy.client.endpoint import Endpoint

WHOLE = "length"  # how an answer ends that has as many tokens as were asked for


def answers(endpoint: Endpoint, key: str, tokens: int = 1900) -> Iterator[str]:
    """Long answers one behind the other, until one is not whole: why each of them ended."""
    body = {"model": endpoint.model, "prompt": "Once", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    headers, end = {"Authorization": f"Bearer {key}"}, WHOLE
    while end == WHOLE:
        try:
            with httpx.stream("POST", f"{endpoint.url}/v1/completions", json=body, headers=headers, timeout=60) as got:
                events = [line.removeprefix("data: ") for line in got.iter_lines() if line.startswith("data: {")]
            end = ended_with(events) if got.status_code == httpx.codes.OK else f"HTTP {got.status_code}"
        except httpx.HTTPError as problem:
            end = type(problem).__name__
        yield end


def ended_with(events: list[str]) -> str:
    """The reason in the last event; an engine told to stop may end with an event of its own, which has no choices."""
    last = json.loads(events[-1]) if events else {}
    if "error" in last:
        return f"an error event: {last['error']}"
    return last["choices"][0]["finish_reason"] or "no finish" if "choices" in last else f"no finish: {last}"


class Crowd:
    """So many clients at the same time, each until its first answer that is not whole."""

    def __init__(self, endpoint: Endpoint, key: str, size: int, *, tokens: int = 200) -> None:
        self._ends: list[list[str]] = [[] for _ in range(size)]
        self._threads = [
            threading.Thread(target=self._ask, args=(ends, endpoint, key, tokens), daemon=True) for ends in self._ends
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        # those that wait for a place have asked by then, too
        deadline = time.monotonic() + 300
        while not any(self._ends):
            assert time.monotonic() < deadline, "no answer came to its end"
            time.sleep(0.1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing: a thread that hangs ends with the tests."""

    def ended(self, within: float) -> Counter[str]:
        """How the last answers ended, of all clients, which must be within so many seconds: none may hang."""
        deadline = time.monotonic() + within
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0))
        assert sum(thread.is_alive() for thread in self._threads) == 0, "clients were left hanging"
        return Counter(ends[-1] for ends in self._ends)

    @property
    def whole(self) -> int:
        """The answers that came whole."""
        return sum(end == WHOLE for ends in self._ends for end in ends)

    @staticmethod
    def _ask(ends: list[str], endpoint: Endpoint, key: str, tokens: int) -> None:
        for end in answers(endpoint, key, tokens):
            ends.append(end)
