"""`status`: whether an engine really answers, now, again and again, and in the past.

For a deployment, it also reports why the engine does not answer. `--url` checks any endpoint, and `--watch` takes
readings of an engine, one after the other. `--since` returns what happened to a deployment, from its journal.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from dflash_deploy.catalog.models import Questions
from dflash_deploy.client.answers import EndpointError
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.deployment.directory import Deployment, restored_since
from dflash_deploy.deployment.journal import Happened, events
from dflash_deploy.diagnosis.diagnose import ProcessEnd
from dflash_deploy.document import AcceptanceLength, Documented, Hidden, Keywords, Seconds
from dflash_deploy.errors import FileRefused
from dflash_deploy.host.gpu import read_gpus
from dflash_deploy.operations.addresses import CHECK_URL, address_of
from dflash_deploy.plan.memory import GIB
from dflash_deploy.planning import plan_as_running, plan_of
from dflash_deploy.redact import Redact, Redactor, Secret
from dflash_deploy.runtime.protocol import EngineState, Runtime
from dflash_deploy.runtime.select import door_of, runtime_for
from dflash_deploy.serve.gateway.keys import LIVENESS
from dflash_deploy.startup.engine import endpoint_of, log_reader_for
from dflash_deploy.startup.published import whole_url
from dflash_deploy.startup.start import KEY_OR_MODEL_ERRORS
from dflash_deploy.startup.watch import Reading, Watch, Window

if TYPE_CHECKING:
    from dflash_deploy.plan.result import Plan


PROBE_TIMEOUT = 30.0  # seconds for one generation; an engine that hangs answers /health and nothing else
STOPPED = frozenset({0, 143, -15})  # exit codes of an engine that was asked to stop: its own, and those of SIGTERM
_UP = "`dflash-deploy up` starts it again"
_RESTART = "`dflash-deploy restart` ends it and starts it again"
_OTHER = "the running engine has another key or another name than .env: `dflash-deploy restart` gives it those of .env"


@dataclass(frozen=True)
class Answered:
    """The result of asking: `state` in one word, and what belongs to it; `None` if it is unknown or does not apply.

    `state` is absent, exited, restarting, paused, cut off, running, starting, asleep, ready or unresponsive. `seconds`
    are those of one generation, `acceptance_length` is that of all requests since the engine started. `rank` is set if
    the engine computes for another machine.
    """

    state: str
    cause: str | None = None
    do: str | None = None
    rank: int | None = None
    problem: str | None = None
    seconds: float | None = None
    acceptance_length: float | None = None


@dataclass(frozen=True)
class Ending:
    """Why an engine ended: the id of a known failure, its cause, and the fix."""

    failure: str
    cause: str
    do: str


@dataclass(frozen=True)
class Status:
    """What is true of a deployment now. Memory is in bytes.

    `gpus` has used and total memory of each GPU, by all processes. `restored` says since when the last good settings
    run in place of those of `.env`. `costs` are ids of known problems of an engine that answers, from its log.
    `endpoint` is empty if another machine answers requests.
    """

    endpoint: str
    model: str
    runtime: str
    engine: EngineState
    answered: Answered
    memory: int | None
    gpus: tuple[tuple[int, int], ...]
    ending: Ending | None
    restored: str
    costs: tuple[str, ...] | None
    door: EngineState | None = None

    @property
    def gpu_memory(self) -> str | None:
        """Used and total memory of each GPU in GiB; `None` without a GPU that has memory of its own."""
        return ", ".join(f"{gib(used)} of {gib(total)}" for used, total in self.gpus) or None

    def document(self) -> dict[str, object]:
        """The `data` of `status --json`."""
        asked = {name: value for name, value in asdict(self.answered).items() if value is not None}
        if self.answered.state == "ready":
            asked.setdefault("acceptance_length", None)
        data: dict[str, object] = {
            "endpoint": self.endpoint,
            "model": self.model,
            **asked,
            "runtime": self.runtime,
            "engine": self.engine.identity or None,
            "exit_code": self.engine.exit_code,
            "restarts": self.engine.restarts,
            "memory_gib": None if self.memory is None else gib(self.memory),
            "gpu_memory_gib": self.gpu_memory,
        }
        if self.ending is not None:
            data |= asdict(self.ending)
        if self.restored:
            data["instead"] = f"the settings that worked last, not those of .env, since {self.restored}"
        if self.door is not None:
            data["door"] = {"state": self.door.phase, "process": self.door.identity or None}
        if self.costs is not None:
            data["costs"] = ", ".join(self.costs) or None
        return data


def status(directory: Path) -> Status:
    """Examine the engine of a deployment and ask it one question. Raises NoDeployment, SettingsRefused."""
    deployment = Deployment.existing(directory)
    plan = plan_as_running(deployment)
    runtime = runtime_for(deployment, plan)
    door = door_of(deployment, plan)
    engine = runtime.state()
    with endpoint_of(deployment, plan, timeout=PROBE_TIMEOUT) as endpoint:
        answered = _out_of_reach(plan, engine) or _asked(endpoint, plan.pair.text.ask)
    return Status(
        endpoint=f"{whole_url(deployment, plan)}/v1" if plan.settings.answers_requests else "",
        model=endpoint.model,
        runtime=plan.runtime,
        engine=engine,
        answered=answered,
        memory=runtime.memory(),
        gpus=tuple(_gpus()),
        ending=_ending(plan, runtime, engine, loading=answered.state == "starting"),
        restored=restored_since(deployment) if engine.alive else "",
        costs=_costs(plan, runtime) if answered.state == "ready" else None,
        door=door.state() if door else None,
    )


def gib(size: int) -> float:
    """Bytes in GiB, with one decimal."""
    return round(size / GIB, 1)


def _out_of_reach(plan: Plan, engine: EngineState) -> Answered | None:
    """Why nothing is asked of the engine; `None` if it can be asked."""
    if engine.phase == "paused":
        return Answered("paused", cause="its container is paused", do=_UP)
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


def _ending(plan: Plan, runtime: Runtime, engine: EngineState, *, loading: bool) -> Ending | None:
    """Cause and fix of an engine that has ended or keeps ending, if its log says why; `None` for a requested end.

    One that is `loading` after its runtime restarted it has ended too, and its log continues after that end.
    """
    wanted = engine.asked or (engine.exit_code in STOPPED and engine.asked is None)
    ended = engine.phase in {"exited", "restarting"} and not wanted
    if not ended and not (loading and engine.restarts):
        return None
    # an engine that was restarted once last week does not keep ending
    restarts = engine.restarts if engine.phase == "restarting" else 0
    end = ProcessEnd(engine.exit_code, engine.out_of_memory, restarts, ended=True)
    known = log_reader_for(plan).read(runtime.read_log().lines, end).diagnosis
    return None if known is None else Ending(known.id, known.cause, known.do)


def _costs(plan: Plan, runtime: Runtime) -> tuple[str, ...]:
    """Ids of known problems in the log of an engine that answers, which cost it speed or quality."""
    return tuple(known.id for known in log_reader_for(plan).costs(runtime.read_log().lines))


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
