"""The `data` of `status`."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import Field

from dflash_deploy.document import AcceptanceLength, Count, Seconds
from dflash_deploy.plan.result import RuntimeName
from dflash_deploy.schemas.common import DocumentedDict


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
