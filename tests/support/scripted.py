"""A runtime and an endpoint that play a script, for states that a healthy engine cannot be brought into."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import pytest

from dflash_deploy.operations import status as probing
from dflash_deploy.operations import up
from dflash_deploy.runtime.protocol import EngineState, LogPage, Narrate
from dflash_deploy.serve.settings import RuntimeName
from tests.support import serving
from tests.support.serving import Quiet

ANSWER = {
    "choices": [{"message": {"content": "Paris"}, "finish_reason": "stop"}],
    "usage": {"completion_tokens": 1},
}


@contextmanager
def listening(*statuses: int, port: int = 0, refusal: str = '{"error": "EngineDeadError"}') -> Iterator[str]:
    """An endpoint that is healthy and answers generations with these statuses, the last one for ever.

    `refusal` is the body of every answer that is no success.
    """
    left = list(statuses)

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(200, "{}")

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            status = left.pop(0) if len(left) > 1 else left[0]
            self.answer(status, json.dumps(ANSWER) if status == 200 else refusal)

        def answer(self, status: int, body: str) -> None:
            self.send(status, "application/json", body.encode())

    with serving.listening(Handler, port) as url:
        yield url


def play(monkeypatch: pytest.MonkeyPatch, runtime_for: Callable[..., "ScriptedRuntime"]) -> None:
    """Let operations start and examine these engines in place of real ones."""
    for module in (up, up, up, probing):
        monkeypatch.setattr(module, "runtime_for", runtime_for)


class ScriptedRuntime:
    """Goes through `states` one look at a time and stays at the last; each look comes with the next of `pages`."""

    name: RuntimeName = "native"

    def __init__(self, states: Sequence[EngineState], pages: Sequence[tuple[str, ...]] = ()) -> None:
        self._states = list(states)
        self._pages: Iterator[tuple[str, ...]] = iter(pages)
        self.halted = False

    def preflight(self) -> None:
        """Nothing is missing."""

    def start(self, narrate: Narrate) -> bool:
        """It is started."""
        return True

    def halt(self, *, at_once: bool = False) -> None:
        """Note that it was stopped."""
        self.halted = True

    def down(self) -> bool:
        """There was something to stop."""
        return True

    def state(self) -> EngineState:
        """The next state."""
        return self._states.pop(0) if len(self._states) > 1 else self._states[0]

    def pids(self) -> tuple[int, ...]:
        """None."""
        return ()

    def memory(self) -> int | None:
        """Nobody can tell."""
        return None

    def next_line(self) -> str:
        """The beginning."""
        return ""

    def read_log(self, cursor: str = "") -> LogPage:
        """The next page."""
        return LogPage(next(self._pages, ()), cursor)
