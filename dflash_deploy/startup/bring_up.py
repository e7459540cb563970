"""`up`: start the engine and wait for its first answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dflash_deploy.client import Completion, Endpoint, EndpointError
from dflash_deploy.errors import EngineNotReady, EngineStopped
from dflash_deploy.startup.known import endpoint_of, log_reader_for
from dflash_deploy.startup.memory_guard import guard_for
from dflash_deploy.startup.preflight import preflight
from dflash_deploy.startup.progress import Phases, ShowProgress, Step, Timekeeper, usual_seconds
from dflash_deploy.startup.wait import Waiting, explain

if TYPE_CHECKING:
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.plan import Plan
    from dflash_deploy.runtime import Runtime
    from dflash_deploy.runtime.protocol import Narrate
    from dflash_deploy.startup.diagnosis import LogReader

WARM_UP_TOKENS = 64

SETTLES = 20.0
"""Seconds for which `start_worker` watches the engine of a rank above 0."""


@dataclass(frozen=True)
class Ready:
    """A deployment that has answered. `changed` is false if it was already running with these settings.

    `tokens_per_second` and `acceptance_length` are measured on a second short answer; `None` if nothing was counted.
    `phases` is the seconds of each phase until the first answer.
    """

    endpoint: str
    model: str
    runtime: str
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
    start = _started(plan, runtime, times)
    # a container has no address before it runs
    with endpoint_of(deployment, plan) as endpoint:
        waiting = start.waiting(plan, runtime, endpoint, patience=patience)
        with _stopped_if(start.changed, runtime):
            answer = waiting.until_ready(question)
        seconds, phases = times.elapsed, times.ended()
        speed, length = _measured(endpoint, question)
        return Ready(endpoint.url, endpoint.model, runtime.name, start.changed, seconds, answer, speed, length, phases)


def start_worker(deployment: Deployment, plan: Plan, runtime: Runtime, *, show: ShowProgress) -> bool:
    """Start the engine of a rank above 0, which serves no requests; return whether anything had to be done.

    The engine loads nothing until rank 0 runs, however long that takes. It is watched for SETTLES seconds, in which
    invalid settings end it. Raises what `bring_up` raises.
    """
    preflight(deployment, plan, runtime, joining=True)
    start = _started(plan, runtime, Timekeeper(show))
    with endpoint_of(deployment, plan) as endpoint:
        waiting = start.waiting(plan, runtime, endpoint, patience=SETTLES)
        with _stopped_if(start.changed, runtime):
            waiting.until_settled(SETTLES)
    return start.changed


@dataclass(frozen=True)
class _Start:
    """An engine that was started, or found running: `changed` says which. `cursor` is where its log begins."""

    changed: bool
    cursor: str
    reader: LogReader
    times: Timekeeper

    def waiting(self, plan: Plan, runtime: Runtime, endpoint: Endpoint, *, patience: float) -> Waiting:
        """The wait for it."""
        phases = Phases(plan.engine.engine)
        return Waiting(
            runtime,
            endpoint,
            self.reader,
            phases,
            patience=patience,
            times=self.times,
            cursor=self.cursor,
            found=not self.changed,
            guard=guard_for(plan, runtime) if self.changed else None,
        )


def _started(plan: Plan, runtime: Runtime, times: Timekeeper) -> _Start:
    """Start the engine if it does not run with these settings. Docker's failures are diagnosed too."""
    reader, cursor = log_reader_for(plan), runtime.next_line()
    try:
        changed = runtime.start(_narrator(runtime.name, times))
    except EngineNotReady as problem:
        findings = reader.read([problem.message, *problem.detail.splitlines()])
        if findings.diagnosis is None:
            raise
        raise explain(EngineNotReady, problem.message, findings) from None
    # the log of an earlier engine is ignored; the log of a running engine is read from its beginning
    return _Start(changed, cursor if changed else "", reader, times)


@contextmanager
def _stopped_if(changed: bool, runtime: Runtime) -> Iterator[None]:
    """Stop an engine that fails if this command started it; leave one that was already running."""
    try:
        yield
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
