"""`status`: whether an engine really answers, now, again and again, and in the past.

For a deployment, it also reports why the engine does not answer. `--url` checks any endpoint, and `--watch` takes
readings of an engine, one after the other. `--since` returns what happened to a deployment, from its journal.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Literal, get_args

from dflash_deploy.catalog.models import Questions
from dflash_deploy.client.answers import EndpointError
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.deployment.directory import Deployment, restored_since, there, unapplied
from dflash_deploy.deployment.journal import Happened, events
from dflash_deploy.diagnosis.diagnose import Diagnosis, ProcessEnd
from dflash_deploy.document import AcceptanceLength, Count, Documented, Hidden, Keywords, Seconds
from dflash_deploy.errors import DeployError, FileRefused
from dflash_deploy.host.gpu import read_gpus
from dflash_deploy.operations.addresses import CHECK_URL, address_of
from dflash_deploy.plan.memory import GIB
from dflash_deploy.plan.result import Plan, RuntimeName
from dflash_deploy.planning import plan_as_running, plan_of, plan_to_stop
from dflash_deploy.redact import Redact, Redactor, Secret
from dflash_deploy.runtime.protocol import EngineState, Phase, Runtime
from dflash_deploy.runtime.select import door_of, runtime_for
from dflash_deploy.serve.gateway.keys import LIVENESS
from dflash_deploy.startup.engine import endpoint_of, log_reader_for, whole_url
from dflash_deploy.startup.start import KEY_OR_MODEL_ERRORS, start_again
from dflash_deploy.startup.watch import Reading, Watch, Window

PROBE_TIMEOUT = 30.0  # seconds for one generation; an engine that hangs answers /health and nothing else
STOPPED = frozenset({0, 143, -15})  # exit codes of an engine that was asked to stop: its own, and those of SIGTERM
_UP = "`dflash-deploy up` starts it again"
_RESTART = "`dflash-deploy restart` ends it and starts it again"
_OTHER = "the running engine has another key or another name than .env: `dflash-deploy restart` gives it those of .env"


State = Literal[
    "absent",
    "exited",
    "restarting",
    "paused",
    "cut off",
    "running",
    "starting",
    "asleep",
    "ready",
    "unresponsive",
]


@dataclass(frozen=True)
class Answered:
    """The result of asking: fields of `Status` with the same names."""

    state: State
    cause: str | None = None
    do: str | None = None
    rank: int | None = None
    problem: str | None = None
    seconds: float | None = None
    acceptance_length: float | None = None


@dataclass(frozen=True)
class DoorStatus(Documented):
    """The container in front of the engine."""

    state: Phase
    """State of its container."""
    process: str | None
    """The container; null if there is none."""


@dataclass(frozen=True, kw_only=True)
class Status(Documented):
    """What is true of the deployment now. A property that does not apply to the state is missing or null."""

    endpoint: str
    """Base URL for OpenAI clients; it ends with `/v1`. Empty if the engine computes for rank 0 on another machine."""
    model: str
    """Name of the model in requests."""
    state: State
    """State of the engine. `ready`: it has just answered. `asleep`: it has ended until the next request. `running`: it
    computes for rank 0 and answers no requests."""
    cause: str | None = None
    """Why it is in this state, if that is known."""
    do: str | None = None
    """What to do about it."""
    rank: Count | None = None
    """Rank of this machine, if the engine computes for rank 0."""
    problem: str | None = None
    """How the request failed, if the state is `unresponsive`."""
    seconds: Seconds | None = None
    """Seconds of one answer, if the state is `ready`."""
    acceptance_length: AcceptanceLength | None = None
    """Acceptance length of all requests since the engine started, in tokens per step; missing without drafts."""
    runtime: RuntimeName
    """What runs the engine: containers (`compose`) or a process on this machine (`native`)."""
    engine: str | None
    """The process or container that runs the engine; null if there is none."""
    exit_code: int | None
    """Exit code of the engine if it ended; a negative one is the signal that killed it."""
    restarts: Count
    """How often the runtime has restarted the engine."""
    memory_gib: Annotated[float, Keywords(minimum=0)] | None
    """Memory of the engine in GiB, without that of the GPUs; null if it is unknown."""
    gpu_memory_gib: str | None
    """Used and total memory of each GPU in GiB: `20.1 of 24.0`, with commas between; null without such a GPU."""
    failure: str | None = None
    """Id of the known failure that ended the engine, as in docs/reference/failures.md."""
    instead: str | None = None
    """The engine does not run the settings of `.env`: since when it runs the last working ones, or what has changed."""
    door: DoorStatus | None = None
    """The published door: Caddy; missing without a domain."""
    costs: str | None = None
    """Ids of known problems that cost speed, with commas between; missing if none. Only in the state `ready`."""


def status(directory: Path) -> Status:
    """Examine the engine of a deployment and ask it one question. Raises NoDeployment, SettingsRefused.

    Settings that cannot be used are the cause in the status of an engine that runs, and an error without one.
    """
    try:
        deployment = Deployment.existing(directory)
        plan = plan_as_running(deployment)
    except DeployError as problem:
        return _without_settings(Deployment.started(directory), problem)
    runtime = runtime_for(deployment, plan)
    door = door_of(deployment, plan)
    engine = runtime.state()
    with endpoint_of(deployment, plan, timeout=PROBE_TIMEOUT) as endpoint:
        answered = _out_of_reach(plan, engine) or _asked(endpoint, plan.pair.text.ask)
    ending = _ending(plan, runtime, engine, loading=answered.state == "starting")
    memory = runtime.memory()
    door_state = door.state() if door else None
    known = log_reader_for(plan).costs(runtime.read_log().lines) if answered.state == "ready" else ()
    costs = [one.id for one in known]
    gpus = ", ".join(f"{gib(used)} of {gib(total)}" for used, total in _gpus())
    return Status(
        endpoint=f"{whole_url(deployment, plan)}/v1" if plan.settings.answers_requests else "",
        model=endpoint.model,
        **{**vars(answered), **({"cause": ending.cause, "do": ending.do} if ending else {})},
        runtime=plan.runtime,
        engine=engine.identity or None,
        exit_code=engine.exit_code,
        restarts=engine.restarts,
        memory_gib=None if memory is None else gib(memory),
        gpu_memory_gib=gpus or None,
        failure=ending.id if ending else None,
        instead=_instead(deployment) if engine.alive else None,
        door=DoorStatus(door_state.phase, door_state.identity or None) if door_state else None,
        costs=", ".join(costs) or None,
    )


def _instead(deployment: Deployment) -> str | None:
    """What an engine runs instead of the settings of `.env`; `None` if it runs them, as far as is known."""
    if restored := restored_since(deployment):
        return f"the settings that worked last, not those of .env, since {restored}"
    changed = unapplied(deployment)
    return f"{changed}; `dflash-deploy up{there(deployment.directory)}` applies it" if changed else None


def _without_settings(deployment: Deployment, problem: DeployError) -> Status:
    """The status of an engine whose settings cannot be used; `problem`, raised, if none runs."""
    plan = plan_to_stop(deployment)
    engine = runtime_for(deployment, plan).state()
    if not engine.alive:
        raise problem
    return Status(
        endpoint="",
        model="",
        state=engine.phase,
        cause=problem.message,
        do=problem.hint,
        runtime=plan.runtime,
        engine=engine.identity or None,
        exit_code=engine.exit_code,
        restarts=engine.restarts,
        memory_gib=None,
        gpu_memory_gib=None,
    )


def gib(size: int) -> float:
    """Bytes in GiB, with one decimal."""
    return round(size / GIB, 1)


def _out_of_reach(plan: Plan, engine: EngineState) -> Answered | None:
    """Why nothing is asked of the engine; `None` if it can be asked."""
    if engine.phase == "paused":
        return Answered("paused", cause="its container is paused", do=_UP)
    if engine.phase == "exited" and _was_asked(engine):
        return Answered("exited", cause="it was asked to end (SIGTERM)", do=start_again())
    if engine.phase != "running":
        return Answered(engine.phase)
    if not engine.connected:
        return Answered("cut off", cause="its container was taken off its network", do=_UP)
    if not plan.settings.answers_requests:
        return Answered("running", rank=plan.settings.node_rank, do="ask rank 0: only that one answers requests")
    return None


def _asked(endpoint: Endpoint, question: str) -> Answered:
    """The result of one generation."""
    try:
        if endpoint.status("GET", LIVENESS) != HTTPStatus.OK:
            return Answered("starting")
    except EndpointError as problem:
        # while an engine starts nothing listens; one that accepts a request and stays silent hangs
        return Answered("unresponsive", problem=str(problem), do=_RESTART) if problem.silent else Answered("starting")
    try:
        if endpoint.asleep():
            return Answered("asleep")
        answer = endpoint.chat(question, max_tokens=8)
        length = endpoint.counters().acceptance_length
    except EndpointError as problem:
        do = _OTHER if problem.status in KEY_OR_MODEL_ERRORS else None
        return Answered("unresponsive", problem=str(problem), do=do)
    return Answered("ready", seconds=round(answer.seconds, 2), acceptance_length=length and round(length, 2))


def _gpus() -> list[tuple[int, int]]:
    gpus = ((gpu.memory, gpu.free) for gpu in read_gpus().gpus)
    return [(memory - free, memory) for memory, free in gpus if memory is not None and free is not None]


def _ending(plan: Plan, runtime: Runtime, engine: EngineState, *, loading: bool) -> Diagnosis | None:
    """Cause and fix of an engine that has ended or keeps ending, if its log says why; `None` for a requested end.

    One that is `loading` after its runtime restarted it has ended too, and its log continues after that end.
    """
    ended = engine.phase in {"exited", "restarting"} and not _was_asked(engine)
    if not ended and not (loading and engine.restarts):
        return None
    # an engine that was restarted once last week does not keep ending
    restarts = engine.restarts if engine.phase == "restarting" else 0
    end = ProcessEnd(engine.exit_code, engine.out_of_memory, restarts, ended=True)
    return log_reader_for(plan).read(runtime.read_log().lines, end).diagnosis


def _was_asked(engine: EngineState) -> bool:
    """Whether an engine that has ended was asked to."""
    return engine.exit_code in STOPPED if engine.asked is None else engine.asked


@dataclass(frozen=True)
class EndpointStatus(Documented):
    """What an endpoint without a deployment says (`--url`)."""

    endpoint: str
    """Base URL for OpenAI clients; it ends with `/v1`."""
    model: str
    """Name of the model in requests; empty if the endpoint does not list one."""
    state: Literal["starting", "ready", "unresponsive"]
    """`ready`: it has just answered. `starting`: it says that weights load."""
    cause: Hidden[None] = None
    do: str | None = None
    """What to do about it."""
    problem: str | None = None
    """How the request failed, if the state is `unresponsive`."""
    seconds: Seconds | None = None
    """Seconds of one answer, if the state is `ready`."""
    acceptance_length: AcceptanceLength | None = None
    """Acceptance length of all requests since the engine started, in tokens per step; missing if unknown."""


def status_url(url: str, key: Secret, *, model: str = "") -> EndpointStatus:
    """Ask any endpoint one question. `model` is the served name to ask, the first one if it is empty.

    An endpoint that does not answer is a state and no error. Raises BadInput.
    """
    place, redact = address_of(url), Redactor([key])
    with Endpoint(place, key, model, proxies=True, timeout=PROBE_TIMEOUT) as endpoint:
        try:
            if endpoint.status_without_key("GET", LIVENESS) == HTTPStatus.SERVICE_UNAVAILABLE:
                return EndpointStatus(f"{place}/v1", model, "starting")
            endpoint.model = model or next(iter(endpoint.models()), "")
            answer = endpoint.chat(Questions().text.ask, max_tokens=8)
        except EndpointError as problem:
            said = redact(str(problem))
            return EndpointStatus(f"{place}/v1", endpoint.model, "unresponsive", do=CHECK_URL, problem=said)
        took, length = round(answer.seconds, 2), _acceptance(endpoint)
        acceptance = length and round(length, 2)
        return EndpointStatus(f"{place}/v1", endpoint.model, "ready", seconds=took, acceptance_length=acceptance)


def _acceptance(endpoint: Endpoint) -> float | None:
    """The acceptance length since the start; `None` if it has no counters, or the key does not open them."""
    try:
        return endpoint.counters().acceptance_length
    except EndpointError:
        return None


METRICS_TIMEOUT = 5.0  # seconds for /metrics; after that the engine counts as not responding


@dataclass(frozen=True)
class Watched:
    """A deployment under watch. `redact` takes its secrets out of text."""

    endpoint: Endpoint
    redact: Redact
    _runtime: Runtime
    _watch: Watch

    def windows(self, every: float, count: int | None = None) -> Iterator[Window]:
        """A window every `every` seconds, endless or `count` times."""
        done = 0
        while count is None or done < count:
            if done:
                time.sleep(every)
            yield self._watch.see(self._reading())
            done += 1

    def _reading(self) -> Reading:
        state = self._runtime.state()
        try:
            metrics = self.endpoint.metrics() if state.phase == "running" else None
        except EndpointError:
            metrics = None
        return Reading(time.monotonic(), state.phase, state.identity, metrics)


@contextmanager
def watch(directory: Path) -> Iterator[Watched]:
    """Watch the engine of a deployment for as long as the block runs. Raises NoDeployment, SettingsRefused."""
    deployment = Deployment.existing(directory)
    plan = plan_of(deployment)
    with endpoint_of(deployment, plan, timeout=METRICS_TIMEOUT) as endpoint:
        yield Watched(endpoint, deployment.redact, runtime_for(deployment, plan), Watch())


@dataclass(frozen=True)
class Event(Documented):
    """Something that happened."""

    at: datetime
    """When, in UTC."""
    event: Annotated[str, Keywords(enum=[*get_args(Happened)])]
    """The kind of the event."""
    command: str
    """The command that did it; empty if no command did."""
    text: str
    """What happened, in words. The text may change."""


@dataclass(frozen=True)
class History(Documented):
    """What happened in a time: the data of `status --since`."""

    since: datetime
    """The beginning of the time, in UTC."""
    events: Sequence[Event]
    """What happened, in order."""


def history(directory: Path, seconds: float) -> History:
    """What happened in the last `seconds`. Raises NoDeployment, and FileRefused for a journal that cannot be read."""
    deployment = Deployment.existing(directory, check=False)
    now = datetime.now(UTC)
    since = now - timedelta(seconds=seconds)
    journal = (
        Event(datetime.fromisoformat(one.at), one.event, one.command, one.text)
        for one in events(deployment, since, _raised)
    )
    return History(since, sorted(journal, key=lambda one: one.at))


def _raised(problem: FileRefused) -> None:
    raise problem
