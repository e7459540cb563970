"""`up`: checks a deployment, starts its engine, and waits for its first real answer.

The checks run before anything starts, the cheapest first and the port last. The wait lasts as long as the engine makes
progress. If an engine listens and does not generate, its answer names the cause more often than the log. With unified
memory, an engine that loads is stopped before the machine freezes.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Self

from dflash_deploy.client.answers import Completion, EndpointError
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.diagnosis.diagnose import Explanation, LogReader, ProcessEnd
from dflash_deploy.errors import (
    EngineAsked,
    EngineDied,
    EngineNotReady,
    EngineStalled,
    EngineStopped,
    PortTaken,
    PreflightRefused,
    SettingsRefused,
    where_explained,
)
from dflash_deploy.host.gpu import OOM_DAEMONS, available_memory, running_programs
from dflash_deploy.host.machine import kernel_lines
from dflash_deploy.host.ports import foreign_bind, listener_on, other_port
from dflash_deploy.plan.command import drafter_directory, engine_command
from dflash_deploy.plan.memory import GIB
from dflash_deploy.serve.settings import Settings
from dflash_deploy.startup.engine import endpoint_of, log_reader_for
from dflash_deploy.startup.progress import Phases, ShowProgress, Step, Timekeeper, message_of, usual_seconds
from dflash_deploy.weights.check import check_weights

if TYPE_CHECKING:
    from dflash_deploy.deployment.directory import Deployment
    from dflash_deploy.plan.result import Plan, RuntimeName
    from dflash_deploy.runtime.protocol import EngineState, Narrate, Runtime


def preflight(
    deployment: Deployment, plan: Plan, runtime: Runtime, *, new_key: bool = False, joining: bool = False
) -> None:
    """Check everything that can be checked before a start; raise the first PreflightRefused or SettingsRefused.

    `new_key`: the key is about to be replaced, so the current one is not checked. `joining`: a rank above 0 starts,
    which serves no requests.
    """
    engine_command(plan)
    if not joining and not plan.settings.answers_requests:
        said = f"this machine is rank {plan.settings.node_rank}; only rank 0 serves requests"
        raise PreflightRefused(said, hint="start it with `dflash-deploy up`")
    if not new_key:
        _check_key(deployment)
    for finding in plan.errors:
        raise PreflightRefused(finding.message, hint=finding.fix)
    runtime.preflight()
    answers = plan.settings.answers_requests
    if answers and (foreign := foreign_bind(plan.settings.dflash_bind)) is not None:
        raise PreflightRefused(foreign[0], hint=foreign[1])
    check_models(deployment, plan)
    host, port = plan.settings.dflash_bind, plan.settings.dflash_port
    if answers and not runtime.state().holds(host, port) and listener_on(host, port):
        raise PortTaken(f"port {port} on {host} is already in use", hint=other_port(host, port))


def check_models(deployment: Deployment, plan: Plan) -> None:
    """Check that the models are on disk, each with the files that the engine needs. Raises WeightsMissing."""
    settings = plan.settings
    target, drafter = deployment.path(settings.model_host_path), deployment.path(drafter_directory(settings))
    mounted = plan.runtime == "compose"
    remedy = plan.pair.target.remedy(str(target), Settings.model_host_path.name)
    check_weights(target, role="target", mounted=mounted, file=settings.model_file, remedy=remedy)
    if settings.mmproj_file:
        check_weights(target, role="vision projector", mounted=mounted, file=settings.mmproj_file, remedy=remedy)
    if plan.drafting:
        check_weights(
            drafter,
            role="drafter",
            mounted=mounted,
            file=settings.drafter_file,
            remedy=plan.pair.drafter.remedy(str(drafter), Settings.drafter_host_path.name),
        )


def _check_key(deployment: Deployment) -> None:
    """Check that the key is valid, reads the same for every reader of `.env`, and is private to the owner."""
    if not deployment.key_is_sound:
        raise SettingsRefused(
            f".env: {Settings.vllm_api_key} must have at least 16 characters: letters, digits, - and _",
            hint="generate a key: `dflash-deploy keys rotate`",
        )
    _ = deployment.further_keys
    if not deployment.is_private():
        raise PreflightRefused(
            f"{deployment.env_file} contains the API key and other users can read it",
            hint=f"run `chmod 600 {deployment.env_file}`",
        )


# Answers to a key or a model's name that the running engine does not know: its log does not tell why.
KEY_OR_MODEL_ERRORS = frozenset({401, 403, 404})


def why_refused(reader: LogReader, problem: EndpointError, log: Callable[[], Explanation]) -> Explanation:
    """Return what explains an answer that is an error: the answer itself, or `log` if the answer names no cause."""
    if problem.status is not None:
        answered = reader.read([f"error: {problem}"])
        if answered.confidence == "named":
            return answered
    return log()


def hints_from(reader: LogReader, lines: Callable[[], Sequence[str]]) -> Callable[[EndpointError], str]:
    """Return a function that gives the cause and the fix of an answer that is an error; empty if it is not known.

    `lines` gives the engine's log. It is called once, and only if an answer names no cause itself.
    """

    @cache
    def log() -> Explanation:
        return reader.read(lines())

    def hint(problem: EndpointError) -> str:
        if problem.status is None or problem.status in KEY_OR_MODEL_ERRORS:
            return ""
        found = why_refused(reader, problem, log).diagnosis
        return "" if found is None else f"{found.cause} ({found.id}): {found.do}"

    return hint


# Bytes of MemAvailable below which an engine that loads is stopped.
#
# A DGX Spark hung after 7 GiB were left (vllm-project/vllm#46307). DGX OS runs earlyoom, which ends the largest
# process at about 8 GB (hasso5703/dgx-spark-qwen38@719c17b, docs/gb10-memory.md), and would name no cause.
LEAST_AVAILABLE = 8 * GIB

# Seconds between two readings of the memory: on a DGX Spark it is gone within seconds (vllm-project/vllm#56824).
LOOK = 0.1


def is_short(available: int | None, least: int) -> bool:
    """Whether the available bytes are fewer than the least; `False` if the system does not report them."""
    return available is not None and available < least


def guard_for(plan: Plan, runtime: Runtime) -> MemoryGuard | None:
    """The guard of an engine that this command started; `None` if its GPU has memory of its own."""
    if not plan.profile.hardware.unified or plan.engine.cpu:
        return None
    share = plan.settings.gpu_memory_utilization
    lower = f"{Settings.max_model_len} or {Settings.max_num_seqs}"
    if plan.engine.kind.utilization is not None:
        now = "" if share is None else f" (now {share:g})"
        lower = f"{Settings.gpu_memory_utilization}{now} or {Settings.max_num_batched_tokens}"
    hint = f"lower {lower} in .env; `dflash-deploy doctor` shows what else holds memory"
    return MemoryGuard(lambda: runtime.halt(at_once=True), hint)


class MemoryGuard:
    """Reads MemAvailable in a thread, since the command that waits may itself wait for an answer."""

    def __init__(
        self,
        stop: Callable[[], None],
        hint: str,
        *,
        least: int = LEAST_AVAILABLE,
        available: Callable[[], int | None] = available_memory,
    ) -> None:
        """`stop` kills the engine, and `hint` says what to change. `least` and `available` are in bytes."""
        self._stop, self._hint, self._least, self._available = stop, hint, least, available
        self._left: int | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="memory guard", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._over.set()
        self._thread.join()

    def check(self, when: str) -> None:
        """Raise EngineStopped if the engine was stopped; `when` says in which phase of the start."""
        if self._left is not None:
            raise EngineStopped(
                f"stopped the engine {when}: only {self._left / GIB:.1f} GiB of the machine's memory were left, "
                f"and below {self._least / GIB:.1f} GiB the machine may freeze",
                hint=self._hint,
            )

    def _look(self) -> None:
        while not self._over.wait(LOOK):
            left = self._available()
            if is_short(left, self._least):
                self._left = left
                # the command that waits stops it again, and reports
                with suppress(EngineNotReady):
                    self._stop()
                return


POLL = 0.5  # seconds between two polls; a container that exits is noticed within 2 s
KEPT_LINES = 50_000  # lines of the log that are kept for a diagnosis; a start writes hundreds
CLOCKS_DIFFER = 5.0  # seconds by which the kernel's clock and this process's may differ

UNKNOWN = (
    "the key lines of the log are above; read all of it with `dflash-deploy logs`, "
    "or collect a bug report with `dflash-deploy logs --bundle`"
)

REPORT = "the reason is not known: collect a bug report with `dflash-deploy logs --bundle`"

# Generations that may end in a server error before the engine is broken; the first request may come too early.
FAILED_ANSWERS = 3


OTHER_SETTINGS = (
    f"{Settings.served_model_name} and {Settings.vllm_api_key} in .env must match those of the running engine"
)

# The line that vLLM writes every ten seconds, even while a request hangs.
_STATISTICS = re.compile(r"Engine \d+: Avg prompt throughput")


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
            if problem.status in KEY_OR_MODEL_ERRORS:
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
            return EngineAsked(seen, hint=f"it sent SIGTERM, as a shutdown does; {start_again()}")
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


def start_again() -> str:
    """What to do after another program asked the engine to end: some programs do so if memory is short."""
    units = " ".join(f"-u {name}" for name in sorted(running_programs().intersection(OOM_DAEMONS)))
    look = f"`journalctl -b {units}` shows whether memory was short; " if units else ""
    return f"{look}start the engine again with `dflash-deploy up`"


def explain(kind: type[EngineNotReady], seen: str, findings: Explanation, unknown: str = UNKNOWN) -> EngineNotReady:
    """Return an error with what was seen, its cause and the fix; if the cause is unknown, with the hint `unknown`."""
    known = findings.diagnosis
    if known is None:
        return kind(seen, hint=unknown, detail="\n".join(findings.lines))
    told = (f"known from: {known.source}", f"failure: {where_explained(known.id)}", *([REPORT] if known.part else []))
    detail = "\n".join((*findings.lines, *told))
    return kind(f"{seen}: {known.cause}", hint=known.do, detail=detail, failure=known.id, fix=known.fix)


WARM_UP_TOKENS = 64

SETTLES = 20.0  # seconds for which `start_worker` watches the engine of a rank above 0


@dataclass(frozen=True)
class Ready:
    """A deployment that has answered. `changed` is false if it was already running with these settings.

    `tokens_per_second` and `acceptance_length` are measured on a second short answer; `None` if nothing was counted.
    `phases` is the seconds of each phase until the first answer.
    """

    endpoint: str
    model: str
    runtime: RuntimeName
    changed: bool
    seconds: float
    first_answer: Completion
    tokens_per_second: float | None = None
    acceptance_length: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)


def bring_up(deployment: Deployment, plan: Plan, runtime: Runtime, *, patience: float, show: ShowProgress) -> Ready:
    """Start the deployment and wait for a real generation.

    Raises PreflightRefused before anything starts, EngineNotReady after. Then the engine is stopped and its log kept.
    """
    preflight(deployment, plan, runtime)
    first = plan.profile.first_start
    times = Timekeeper(show, usual_seconds(deployment), first.seconds if first else None)
    question = plan.pair.text.ask
    with _started(deployment, plan, runtime, times, patience) as (changed, endpoint, waiting):
        answer = waiting.until_ready(question)
        seconds, phases = times.elapsed, times.ended()
        speed, length = _measured(endpoint, question)
        return Ready(endpoint.url, endpoint.model, runtime.name, changed, seconds, answer, speed, length, phases)


def start_worker(deployment: Deployment, plan: Plan, runtime: Runtime, *, show: ShowProgress) -> bool:
    """Start the engine of a rank above 0, which serves no requests; return whether anything had to be done.

    The engine loads nothing until rank 0 runs, however long that takes. It is watched for SETTLES seconds, in which
    invalid settings end it. Raises what `bring_up` raises.
    """
    preflight(deployment, plan, runtime, joining=True)
    with _started(deployment, plan, runtime, Timekeeper(show), SETTLES) as (changed, _, waiting):
        waiting.until_settled(SETTLES)
        return changed


@contextmanager
def _started(
    deployment: Deployment, plan: Plan, runtime: Runtime, times: Timekeeper, patience: float
) -> Iterator[tuple[bool, Endpoint, Waiting]]:
    """Start the engine if it does not run with these settings. Docker's failures are diagnosed too.

    Yields whether it was started, its endpoint, and the wait for it. If it fails in the block, an engine that was
    started is stopped, and one that was already running is left.
    """
    reader, cursor = log_reader_for(plan), runtime.next_line()
    try:
        changed = runtime.start(_narrator(runtime.name, times))
    except EngineNotReady as problem:
        findings = reader.read([problem.message, *problem.detail.splitlines()])
        if findings.diagnosis is None:
            raise
        raise explain(EngineNotReady, problem.message, findings) from None
    # the log of an earlier engine is ignored; the log of a running engine is read from its beginning
    cursor, guard = (cursor, guard_for(plan, runtime)) if changed else ("", None)
    # a container has no address before it runs
    with endpoint_of(deployment, plan) as endpoint:
        waiting = Waiting(
            runtime,
            endpoint,
            reader,
            Phases(plan.engine.engine),
            patience=patience,
            times=times,
            cursor=cursor,
            found=not changed,
            guard=guard,
        )
        try:
            yield changed, endpoint, waiting
        except EngineNotReady as problem:
            if changed:
                # if stopping fails too, report the first problem
                with suppress(EngineNotReady):
                    runtime.halt(at_once=isinstance(problem, EngineStopped))
            raise


def _narrator(runtime: str, times: Timekeeper) -> Narrate:
    """Return a function that shows the phase of each line a runtime writes while it creates the engine's process."""
    phases, step = Phases(runtime), Step("creating")

    def narrate(line: str) -> None:
        nonlocal step
        step = phases.after([line], step)
        times.tell(step, line)

    return narrate


def _measured(endpoint: Endpoint, question: str) -> tuple[float | None, float | None]:
    """Return tokens per second and acceptance length of one short answer: a first sign that drafts are accepted."""
    try:
        before = endpoint.counters()
        answer = endpoint.chat(question, max_tokens=WARM_UP_TOKENS)
        length = (endpoint.counters() - before).acceptance_length
    except EndpointError:
        # the engine is ready; a failed measurement does not change that
        return None, None
    return (answer.completion_tokens / answer.seconds if answer.seconds > 0 else None), length
