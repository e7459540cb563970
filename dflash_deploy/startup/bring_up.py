"""`up`: start, wait for the first answer, and say what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from dflash_deploy.catalog import load_catalog
from dflash_deploy.client import Completion, Endpoint, EndpointError
from dflash_deploy.deployment import Deployment
from dflash_deploy.errors import EngineNotReady
from dflash_deploy.plan import Plan
from dflash_deploy.plan.command import engine_environment
from dflash_deploy.runtime import Runtime
from dflash_deploy.runtime.protocol import Narrate
from dflash_deploy.startup.diagnosis import LogReader
from dflash_deploy.startup.preflight import preflight
from dflash_deploy.startup.progress import Phases, ShowProgress, Step, Timekeeper, usual_seconds
from dflash_deploy.startup.wait import Waiting, explained

WARM_UP_TOKENS = 64

SETTLES = 20.0
"""Seconds for which an engine that answers nobody is watched."""


@dataclass(frozen=True)
class Ready:
    """A deployment that has answered. `changed` is false where it ran already with these settings.

    `tokens_per_second` and `acceptance_length` are those of one more short answer; `None` where it was not counted.
    `phases` are the seconds until the first answer.
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


def endpoint_of(deployment: Deployment, plan: Plan, *, timeout: float | None = None) -> Endpoint:
    """The endpoint of a deployment, as reached from this machine."""
    host, port = plan.values["DFLASH_BIND"], plan.values["DFLASH_PORT"]
    # an address that means "all of them" is listened on, not called
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    if ":" in reachable:
        reachable = f"[{reachable}]"
    unnamed = engine_environment(plan.values, plan.runtime)["MODEL_PATH"]
    model = (plan.values["SERVED_MODEL_NAME"].split() or [unnamed])[0]
    url = f"http://{reachable}:{port}"
    return Endpoint(url, deployment.key, model, timeout=timeout) if timeout else Endpoint(url, deployment.key, model)


def log_reader_for(plan: Plan) -> LogReader:
    """What reads the log of a plan's engine, with all that the catalog knows of its failures."""
    return LogReader(load_catalog().failures, plan.engine.engine, plan.engine_version)


def bring_up(deployment: Deployment, plan: Plan, runtime: Runtime, *, patience: float, show: ShowProgress) -> Ready:
    """Start the deployment and wait for a real generation.

    Raises PreflightRefused before anything is started, EngineNotReady after; then the engine is stopped, its log kept.
    """
    preflight(deployment, plan, runtime)
    first = plan.profile.first_start
    times = Timekeeper(show, usual_seconds(deployment), first.seconds if first else None)
    question = plan.pair.text.ask
    with endpoint_of(deployment, plan) as endpoint:
        changed, waiting = _started(plan, runtime, endpoint, times, patience=patience)
        with _stopped_if(changed, runtime):
            answer = waiting.until_ready(question)
        seconds, phases = times.elapsed, times.ended()
        speed, length = _measured(endpoint, question)
        return Ready(endpoint.url, endpoint.model, runtime.name, changed, seconds, answer, speed, length, phases)


def start_worker(deployment: Deployment, plan: Plan, runtime: Runtime, *, show: ShowProgress) -> bool:
    """Start an engine that computes for rank 0 and answers nobody itself; tells whether anything had to be done.

    It loads nothing before rank 0 is there, however long that takes. So it is watched for SETTLES seconds, within which
    settings that it does not take end it. Raises what `bring_up` raises.
    """
    preflight(deployment, plan, runtime, joining=True)
    with endpoint_of(deployment, plan) as endpoint:
        changed, waiting = _started(plan, runtime, endpoint, Timekeeper(show), patience=SETTLES)
        with _stopped_if(changed, runtime):
            waiting.until_settled(SETTLES)
    return changed


def _started(
    plan: Plan, runtime: Runtime, endpoint: Endpoint, times: Timekeeper, *, patience: float
) -> tuple[bool, Waiting]:
    """Whether the engine had to be started, and the wait for it. What Docker and Compose say has fingerprints too."""
    reader, cursor = log_reader_for(plan), runtime.next_line()
    try:
        changed = runtime.start(_told(runtime.name, times))
    except EngineNotReady as problem:
        findings = reader.read([problem.message, *problem.detail.splitlines()])
        if findings.diagnosis is None:
            raise
        raise explained(EngineNotReady, problem.message, findings) from None
    # what an earlier engine died of is no news; of one that runs all that it has written counts
    since = cursor if changed else ""
    phases = Phases(plan.engine.engine)
    return changed, Waiting(runtime, endpoint, reader, phases, patience=patience, times=times, cursor=since)


@contextmanager
def _stopped_if(changed: bool, runtime: Runtime) -> Iterator[None]:
    """An engine that this command has started is stopped where it fails; one that ran before is not its to stop."""
    try:
        yield
    except EngineNotReady:
        if changed:
            # where not even that can be done the first problem is still the one to tell
            with suppress(EngineNotReady):
                runtime.halt()
        raise


def _told(runtime: str, times: Timekeeper) -> Narrate:
    """Takes what a runtime says while it makes an engine's process, and tells the phase that it is in."""
    phases, step = Phases(runtime), Step("creating")

    def narrate(line: str) -> None:
        nonlocal step
        step = phases.after([line], step)
        times.tell(step, line)

    return narrate


def _measured(endpoint: Endpoint, question: str) -> tuple[float | None, float | None]:
    """Tokens a second and acceptance length of one short answer: the first sight of whether drafts are accepted."""
    try:
        before = endpoint.counters()
        answer = endpoint.chat(question, max_tokens=WARM_UP_TOKENS)
        length = (endpoint.counters() - before).acceptance_length
    except EndpointError:
        # an engine that is up is not to be called down for this
        return None, None
    return (answer.completion_tokens / answer.seconds if answer.seconds > 0 else None), length
