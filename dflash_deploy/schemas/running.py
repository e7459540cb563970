"""The `data` of `up`, `restart`, `rollback`, `status` and `explain`, and the events of `--json-stream`."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import Field

from dflash_deploy.checks.check import CheckResult
from dflash_deploy.diagnosis.diagnose import Diagnosis
from dflash_deploy.document import AcceptanceLength, Count, Rate, Seconds
from dflash_deploy.plan.result import RuntimeName
from dflash_deploy.schemas.common import DocumentedDict


class FixedData(DocumentedDict):
    """What `--fix` changed in `.env`."""

    failure: str
    """Id of the failure that it fixed, as in docs/reference/failures.md."""
    changes: dict[str, str]
    """The settings that it wrote, with their new values."""
    before: str
    """Path of `.env` as it was before."""


class UpData(DocumentedDict):
    """An engine that answers."""

    endpoint: str
    """Base URL for OpenAI clients; it ends with `/v1`."""
    model: str
    """Name of the model in requests."""
    runtime: RuntimeName
    """What runs the engine: containers (`compose`) or a process on this machine (`native`)."""
    state: Literal["ready"]
    """The engine has answered a request."""
    changed: bool
    """Whether the engine was started; false if it answered already."""
    seconds: Seconds
    """Seconds from the beginning of the start to the first answer."""
    fixed: FixedData | None
    """What `--fix` changed; null if it changed nothing."""
    tokens_per_second: Rate | None
    """Tokens per second of one short answer; null if it was not measured."""
    acceptance_length: AcceptanceLength | None
    """Acceptance length of that answer, in tokens per step; null if nothing was drafted or counted."""
    checks: list[CheckResult]
    """The quick checks of `test`, with which `up` ends."""


class WorkerData(DocumentedDict):
    """An engine that computes for rank 0 and answers no requests itself."""

    rank: Annotated[int, Field(ge=1)]
    """Rank of this machine."""
    master: str
    """Address of rank 0 on the link between the machines."""
    state: Literal["running"]
    """The engine runs; rank 0 answers requests."""
    runtime: RuntimeName
    """What runs the engine: containers (`compose`) or a process on this machine (`native`)."""
    changed: bool
    """Whether the engine was started; false if it was running already."""


class DiagnosisData(DocumentedDict):
    """Why the engine did not become ready."""

    failure: str | None
    """Id of the known failure, as in docs/reference/failures.md; null if it is unknown."""
    fix: dict[str, str]
    """The settings that `up --fix` may write to fix it; empty if no change is safe."""
    evidence: list[str]
    """Lines of the engine's log that show the failure, or its most relevant lines."""
    fixed: NotRequired[FixedData]
    """What `--fix` changed before this failure; missing if it changed nothing."""


class RestartData(DocumentedDict):
    """An engine that answers, after `restart`."""

    endpoint: str
    """Base URL for OpenAI clients; it ends with `/v1`."""
    state: Literal["ready"]
    """The engine has answered a request."""
    seconds: Seconds
    """Seconds from the beginning of the start to the first answer."""


class RollbackData(DocumentedDict):
    """An engine that answers, after `rollback`."""

    changed: list[str]
    """Names of the settings that were restored in `.env`."""
    endpoint: str
    """Base URL for OpenAI clients; it ends with `/v1`."""
    state: Literal["ready"]
    """The engine has answered a request."""


class FrontData(DocumentedDict):
    """The container in front of the engine."""

    state: Literal["absent", "running", "restarting", "exited", "paused"]
    """State of its container."""
    process: str | None
    """The container; null if there is none."""


class StatusData(DocumentedDict):
    """What is true of the deployment now. A property that does not apply to the state is missing or null."""

    endpoint: str
    """Base URL for OpenAI clients; it ends with `/v1`. Empty if the engine computes for rank 0 on another machine."""
    model: str
    """Name of the model in requests."""
    state: Literal[
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
    """State of the engine. `ready`: it has just answered. `asleep`: it has ended until the next request. `running`: it
    computes for rank 0 and answers no requests."""
    cause: NotRequired[str]
    """Why it is in this state, if that is known."""
    do: NotRequired[str]
    """What to do about it."""
    rank: NotRequired[Count]
    """Rank of this machine, if the engine computes for rank 0."""
    problem: NotRequired[str]
    """How the request failed, if the state is `unresponsive`."""
    seconds: NotRequired[Seconds]
    """Seconds of one answer, if the state is `ready`."""
    acceptance_length: NotRequired[AcceptanceLength | None]
    """Acceptance length of all requests since the engine started, in tokens per step; null if nothing was drafted."""
    runtime: RuntimeName
    """What runs the engine: containers (`compose`) or a process on this machine (`native`)."""
    engine: str | None
    """The process or container that runs the engine; null if there is none."""
    exit_code: int | None
    """Exit code of the engine if it ended; a negative one is the signal that killed it."""
    restarts: Count
    """How often the runtime has restarted the engine."""
    memory_gib: Annotated[float, Field(ge=0)] | None
    """Memory of the engine in GiB, without that of the GPUs; null if it is unknown."""
    gpu_memory_gib: str | None
    """Used and total memory of each GPU in GiB: `20.1 of 24.0`, with commas between; null without such a GPU."""
    failure: NotRequired[str]
    """Id of the known failure that ended the engine, as in docs/reference/failures.md."""
    instead: NotRequired[str]
    """The engine runs the last working settings, not those of `.env`: this says since when."""
    door: NotRequired[FrontData]
    """The published door: Caddy; missing without a domain."""
    costs: NotRequired[str | None]
    """Ids of known problems that cost speed, with commas between; null if none. Only in the state `ready`."""


class StatusUrlData(DocumentedDict):
    """What an endpoint without a deployment says (`--url`)."""

    endpoint: str
    """Base URL for OpenAI clients; it ends with `/v1`."""
    model: str
    """Name of the model in requests; empty if the endpoint does not list one."""
    state: Literal["starting", "ready", "unresponsive"]
    """`ready`: it has just answered. `starting`: it says that weights load."""
    problem: NotRequired[str]
    """How the request failed, if the state is `unresponsive`."""
    do: NotRequired[str]
    """What to do about it."""
    seconds: NotRequired[Seconds]
    """Seconds of one answer, if the state is `ready`."""
    acceptance_length: NotRequired[AcceptanceLength]
    """Acceptance length of all requests since the engine started, in tokens per step; missing if unknown."""


class ProgressData(DocumentedDict):
    """One line of `--json-stream` while the engine starts. The last line is the document of the command."""

    event: Literal["progress"]
    """The kind of the line; that of the last line is `result`."""
    phase: str
    """The current phase in words, as in docs/reference/up.md. The text may change."""
    elapsed: Seconds
    """Seconds since the beginning of the start."""
    last_line: str
    """Last line of the engine's log, or how far the download of weights is; empty if there is none."""
    done: Count
    """How much of the phase is done, of `total`; 0 if nothing is counted."""
    total: Count
    """How much the phase has to do, such as files of weights, or MB to download; 0 if nothing is counted."""
    in_phase: Seconds
    """Seconds since the beginning of the phase."""
    usual: Seconds | None
    """Seconds of the last successful start, or a published time before the first one; null if neither is known."""
    usual_in_phase: Seconds | None
    """Seconds of this phase in the last successful start; null if unknown."""


class ExplainData(DocumentedDict):
    """What the log of an engine says, without secrets."""

    engine: str | None
    """Name of the engine; null if neither `--engine` nor a line of the log names it."""
    release: str | None
    """Release of the engine; null if neither `--engine` nor a line of the log names it."""
    verdict: Literal["named", "likely", "unknown", "none"]
    """How sure the cause is. `none`: the log shows no failure."""
    failure: Diagnosis | None
    """The cause; null if it is unknown, or without a failure."""
    lines: list[str]
    """The decisive lines of the log; empty if the log shows no failure."""
    circumstances: list[str]
    """What is true besides the cause, in words. The text may change."""
    costs: list[Diagnosis]
    """Known problems that cost speed, memory or a feature without ending the engine."""
    not_known: list[str]
    """What the log does not say and would help, in words. The text may change."""
    lines_read: Count
    """Lines that were read."""
