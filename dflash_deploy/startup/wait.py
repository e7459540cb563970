"""Wait for the first real answer as long as the engine makes progress."""

from __future__ import annotations

import re
import time
from collections import deque
from contextlib import nullcontext
from typing import TYPE_CHECKING

from dflash_deploy.client import Completion, Endpoint, EndpointError
from dflash_deploy.errors import EngineAsked, EngineDied, EngineNotReady, EngineStalled
from dflash_deploy.host import kernel_lines
from dflash_deploy.serve.settings import Settings
from dflash_deploy.startup.diagnosis import Explanation, LogReader, ProcessEnd
from dflash_deploy.startup.progress import Phases, Step, Timekeeper, message_of
from dflash_deploy.startup.refused import OF_OTHER_SETTINGS, why_refused

if TYPE_CHECKING:
    from dflash_deploy.runtime import EngineState, Runtime
    from dflash_deploy.startup.memory_guard import MemoryGuard

POLL = 0.5
"""Seconds between two polls; a container that exits is noticed within 2 s."""

KEPT_LINES = 50_000
"""Lines of the log that are kept for a diagnosis; a start writes hundreds."""

CLOCKS_DIFFER = 5.0
"""Seconds by which the kernel's clock and this process's may differ."""

UNKNOWN = (
    "the key lines of the log are above; read all of it with `dflash-deploy logs`, "
    "or collect a bug report with `dflash-deploy logs --bundle`"
)

REPORT = "the reason is not known: collect a bug report with `dflash-deploy logs --bundle`"

FAILED_ANSWERS = 3
"""Generations that may end in a server error before the engine is broken; the first request may come too early."""


OTHER_SETTINGS = (
    f"{Settings.served_model_name} and {Settings.vllm_api_key} in .env must match those of the running engine"
)

_STATISTICS = re.compile(r"Engine \d+: Avg prompt throughput")
"""The line that vLLM writes every ten seconds, even while a request hangs."""


class Waiting:
    """One wait: follows the log, watches the process, and requests a generation once the engine listens."""

    def __init__(
        self,
        runtime: Runtime,
        endpoint: Endpoint,
        reader: LogReader,
        phases: Phases,
        *,
        patience: float,
        times: Timekeeper,
        cursor: str = "",
        found: bool = False,
        guard: MemoryGuard | None = None,
    ) -> None:
        """`found`: the engine ran before this wait. If it listens, its log is that of an earlier start: not shown.

        `guard` stops an engine that takes the last of unified memory.
        """
        self._runtime = runtime
        self._endpoint = endpoint
        self._reader = reader
        self._phases = phases
        self._patience = patience
        self._times = times
        self._log: deque[str] = deque(maxlen=KEPT_LINES)
        self._cursor = cursor
        self._started = self._last_sign = time.monotonic()
        self._step, self._line = Step("starting"), ""
        # restarts before this wait are not failures of this start
        self._restarts_before = runtime.state().restarts
        self._failed_answers = 0
        self._guard = guard
        self._loads = not (found and endpoint.alive())

    def until_ready(self, question: str) -> Completion:
        """Return the first answer. Raises EngineDied, EngineStopped, EngineStalled after `patience` silent seconds."""
        with self._guard or nullcontext():
            answer = self._until_ready(question)
        self._check_memory()
        return answer

    def _until_ready(self, question: str) -> Completion:
        while True:
            self._look()
            if self._endpoint.alive() and (answer := self._first_answer(question)) is not None:
                return answer
            if time.monotonic() - self._last_sign > self._patience:
                raise self._stalled()
            time.sleep(POLL)

    def until_settled(self, seconds: float) -> None:
        """Watch the engine for `seconds`. Raises EngineDied or EngineStopped with the cause."""
        with self._guard or nullcontext():
            while time.monotonic() - self._started < seconds:
                self._look()
                time.sleep(POLL)

    def _look(self) -> None:
        """Show new lines of the log, and raise EngineDied if the engine ended, EngineStopped if the guard ended it."""
        self._follow_log()
        state = self._runtime.state()
        self._check_memory()
        if not state.alive or state.restarts > self._restarts_before:
            self._follow_log()
            problem = self._died(state)
            # the rollback that follows takes a while
            self._times.tell(Step("stopping"), "the engine ended")
            raise problem

    def _check_memory(self) -> None:
        """Raise EngineStopped if the guard stopped the engine."""
        if self._guard is not None:
            self._guard.check(f"after {self._times.elapsed:.0f} s, while {self._step.phase}")

    def _follow_log(self) -> None:
        page = self._runtime.read_log(self._cursor)
        self._cursor = page.cursor
        lines = [line for line in page.lines if line.strip()]
        self._log.extend(lines)
        if any(not _STATISTICS.search(line) for line in lines):
            self._last_sign = time.monotonic()
        if not self._loads:
            return
        self._step = self._phases.after(lines, self._step)
        self._line = message_of(lines[-1]) if lines else self._line
        self._times.tell(self._step, self._line)

    def _first_answer(self, question: str) -> Completion | None:
        """Request one real generation. `None` if it may still come, or the engine died, which the next poll notices."""
        self._times.tell(Step("first generation"), self._line)
        try:
            return self._endpoint.chat(question, max_tokens=16)
        except EndpointError as problem:
            self._check_memory()
            seen = f"the engine listens but does not generate: {problem}"
            if problem.status in OF_OTHER_SETTINGS:
                raise EngineStalled(seen, hint=OTHER_SETTINGS) from None
            self._failed_answers += 1
            refused = problem.status is not None and problem.status < 500
            if refused or self._failed_answers >= FAILED_ANSWERS:
                self._follow_log()
                raise explain(EngineStalled, seen, why_refused(self._reader, problem, self._findings)) from None
            return None

    def _findings(self, state: EngineState | None = None) -> Explanation:
        """Explain the failure from the log, the end of the process and the kernel's log."""
        restarts = 0 if state is None else state.restarts - self._restarts_before
        if state is not None and state.phase == "restarting":
            # a container that ends at once has restarted before the first poll
            restarts = max(restarts, 1)
        ending = (
            ProcessEnd() if state is None else ProcessEnd(state.exit_code, state.out_of_memory, restarts, ended=True)
        )
        return self._reader.read(self._log, ending, kernel_lines(self._started - CLOCKS_DIFFER))

    def _died(self, state: EngineState) -> EngineNotReady:
        if state.asked:
            seen = f"another program asked the engine to stop after {self._times.elapsed:.0f} s: {self._step.phase}"
            return EngineAsked(seen, hint=ASKED)
        code = "" if state.exit_code is None else f" with code {state.exit_code}"
        how = "is gone" if state.phase == "absent" else f"ended{code}"
        if state.out_of_memory:
            how = "ran out of memory (OOM) and was killed"
        elif state.restarts:
            how = f"ended{code} and was restarted {'once' if state.restarts == 1 else f'{state.restarts} times'}"
        seen = f"the engine {how} after {self._times.elapsed:.0f} s, while {self._step.phase}"
        return explain(EngineDied, seen, self._findings(state))

    def _stalled(self) -> EngineNotReady:
        seen = f"the engine has written nothing for {self._patience:.0f} s, while {self._step.phase}"
        patient = "read the log with `dflash-deploy logs`; wait longer with `--patience SECONDS`"
        return explain(EngineStalled, seen, self._findings(), patient)


ASKED = "it sent SIGTERM, as a shutdown does; start the engine again with `dflash-deploy up`"


def explain(kind: type[EngineNotReady], seen: str, findings: Explanation, unknown: str = UNKNOWN) -> EngineNotReady:
    """Return an error with what was seen, its cause and the fix; if the cause is unknown, with the hint `unknown`."""
    known = findings.diagnosis
    if known is None:
        return kind(seen, hint=unknown, detail="\n".join(findings.lines))
    told = (f"known from: {known.source}", *([REPORT] if known.part else []))
    detail = "\n".join((*findings.lines, *told))
    return kind(f"{seen}: {known.cause}", hint=known.do, detail=detail, failure=known.id, fix=known.fix)
