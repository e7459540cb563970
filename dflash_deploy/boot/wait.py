"""Waiting for the first real answer, for as long as the engine makes progress."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from dflash_deploy.boot.phases import message_of, phase_after
from dflash_deploy.client import Answer, Endpoint, EndpointError
from dflash_deploy.errors import EngineDied, EngineStalled
from dflash_deploy.runtime import EngineState, Runtime

POLL = 0.5
"""Seconds between two looks; a container that exits is noticed within 2 s."""

TAIL_LINES = 25

FAILED_ANSWERS = 3
"""Generations that may end in a server error before the engine counts as broken; the first may come too early."""


@dataclass(frozen=True)
class Progress:
    """What a person sees while waiting. `elapsed` is in seconds since the start."""

    phase: str
    elapsed: float
    last_line: str


_STATISTICS = re.compile(r"Engine \d+: Avg prompt throughput")
"""What vLLM writes every ten seconds, even while a request hangs."""

Show = Callable[[Progress], None]


class Waiting:
    """One wait: follows the log, watches the process, and asks for a generation once the engine listens."""

    def __init__(self, runtime: Runtime, endpoint: Endpoint, *, question: str, patience: float, show: Show) -> None:
        self._runtime = runtime
        self._endpoint = endpoint
        self._question = question
        self._patience = patience
        self._show = show
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._cursor = ""
        self._started = self._last_sign = time.monotonic()
        self._progress = Progress("starting", 0.0, "")
        # an engine that came back by itself last week is no failure of this start
        self._restarts_before = runtime.state().restarts
        self._failed_answers = 0

    @property
    def elapsed(self) -> float:
        """Seconds since the wait began."""
        return time.monotonic() - self._started

    def until_ready(self) -> Answer:
        """The first answer. Raises EngineDied with the log's tail, or EngineStalled after `patience` silent seconds."""
        while True:
            self._follow_log()
            state = self._runtime.state()
            if not state.alive or state.restarts > self._restarts_before:
                self._follow_log()
                raise self._died(state)
            if self._endpoint.alive() and (answer := self._first_answer()) is not None:
                return answer
            if time.monotonic() - self._last_sign > self._patience:
                raise self._stalled()
            time.sleep(POLL)

    def _follow_log(self) -> None:
        page = self._runtime.read_log(self._cursor)
        self._cursor = page.cursor
        lines = [line for line in page.lines if line.strip()]
        self._tail.extend(lines)
        if any(not _STATISTICS.search(line) for line in lines):
            self._last_sign = time.monotonic()
        phase = phase_after(lines, self._progress.phase)
        last_line = message_of(lines[-1]) if lines else self._progress.last_line
        self._progress = Progress(phase, self.elapsed, last_line)
        self._show(self._progress)

    def _first_answer(self) -> Answer | None:
        """One real generation. `None` where it may still come, or the engine died over it, which is seen next."""
        self._show(replace(self._progress, phase="first generation"))
        try:
            return self._endpoint.chat(self._question, max_tokens=16)
        except EndpointError as problem:
            refused = problem.status is not None and problem.status < 500
            self._failed_answers += 1
            if refused or self._failed_answers >= FAILED_ANSWERS:
                raise EngineStalled(
                    f"the engine listens but does not generate: {problem}",
                    hint="SERVED_MODEL_NAME and VLLM_API_KEY in .env must be those the engine was started with"
                    if refused
                    else "the last lines of its log stand above; `dflash-deploy logs` shows all of it",
                    detail="\n".join(self._tail),
                ) from None
            return None

    def _died(self, state: EngineState) -> EngineDied:
        code = "" if state.exit_code is None else f" with code {state.exit_code}"
        how = "is gone" if state.phase == "absent" else f"ended{code}"
        if state.out_of_memory:
            how = "was killed for want of memory"
        elif state.restarts:
            how = f"ended{code} and was restarted {state.restarts} times"
        return EngineDied(
            f"the engine {how} after {self._progress.elapsed:.0f} s, while {self._progress.phase}",
            hint="the last lines of its log stand above; `dflash-deploy logs` shows all of it",
            detail="\n".join(self._tail),
        )

    def _stalled(self) -> EngineStalled:
        return EngineStalled(
            f"the engine has written nothing for {self._patience:.0f} s, while {self._progress.phase}",
            hint="look at `dflash-deploy logs`; wait longer with --patience SECONDS",
            detail="\n".join(self._tail),
        )
