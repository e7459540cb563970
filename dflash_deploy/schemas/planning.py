"""The `data` of `plan`, `init`, `render` and `doctor`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dflash_deploy.catalog.speeds import PublishedSpeed
from dflash_deploy.doctor.check import Status as DoctorStatus
from dflash_deploy.operations.capacity import Basis
from dflash_deploy.plan.result import RuntimeName
from dflash_deploy.schemas.common import AcceptanceLength, Count, Documented, Rate, Seconds

RateRange = Annotated[list[Rate], Field(min_length=2, max_length=2)]
LengthRange = Annotated[list[AcceptanceLength], Field(min_length=2, max_length=2)]


class SettingData(Documented):
    """One setting of the plan."""

    name: str
    """Name in `.env`, as in docs/reference/settings.md."""
    value: str
    """Value as `.env` has it; empty if the engine chooses."""
    origin: str
    """Where the value comes from, such as `profile rtx-3090`, `--goal latency` or `.env`."""
    reason: str
    """Why it has this value."""
    source: str
    """Document or measurement behind the reason; empty if there is none."""


class MemoryData(Documented):
    """The estimated memory of one GPU, or of the machine for an engine on the processor."""

    budget_bytes: Count
    """Bytes that the engine may use."""
    target_bytes: Count
    """Bytes of the target's weights."""
    drafter_bytes: Count
    """Bytes of the drafter's weights; 0 without a drafter."""
    reserve_bytes: Count
    """Bytes for activations, logits, graphs and the context of the GPU."""
    cache_bytes: Count
    """Bytes that are left for the KV cache."""
    kv_bytes_per_token: Count
    """Bytes of KV cache that one token takes."""
    state_bytes_per_sequence: Count
    """Bytes of recurrent (SSM) state that one sequence takes; 0 without such layers."""
    cache_tokens: Count
    """Tokens that fit into the cache, all sequences together."""
    full_sequences: Annotated[float, Field(ge=0)]
    """Sequences of the full length (MAX_MODEL_LEN) that fit into the cache."""
    short_sequences: Annotated[float, Field(ge=0)]
    """Short sequences that fit into the cache: as many can be decoded at the same time."""
    fits: bool
    """Whether one sequence of the full length fits; the engine does not start otherwise."""
    system_bytes: Count | None
    """Bytes that remain for the system if the GPU uses the same memory; `null` if it does not."""


class ExpectedSpeedData(Documented):
    """What the speed model expects at one concurrency. A range has two numbers, the lowest and the highest."""

    concurrency: Count
    """Requests at the same time."""
    plain_tokens_per_s: RateRange
    """Tokens per second of all requests together, without speculative decoding."""
    dflash_tokens_per_s: RateRange | None
    """Tokens per second of all requests together, with the drafter; null without a drafter."""
    acceptance_length: LengthRange | None
    """Acceptance length behind `dflash_tokens_per_s`, in tokens per step; null without a drafter."""


class SpeedData(Documented):
    """The speed to expect on this machine."""

    expected: list[ExpectedSpeedData]
    """What the speed model expects, by concurrency; empty on a machine without a GPU."""
    published: list[PublishedSpeed]
    """What others published for the same hardware and models."""
    mtp_head: str | None
    """What the last `tune` found about the target's MTP head, in words; null if it did not measure it."""


class SimulatedData(Documented):
    """One replica with a number of users, as simulated."""

    users: Annotated[int, Field(ge=1)]
    """Users of this replica."""
    requests: Count
    """Requests that were counted."""
    ttft_p50_s: Seconds
    """Median time to the first token, in seconds."""
    ttft_p95_s: Seconds
    """95th percentile of the time to the first token, in seconds."""
    answer_p50_s: Seconds
    """Median time to the last token, in seconds."""
    answer_p95_s: Seconds
    """95th percentile of the time to the last token, in seconds."""
    answer_mean_s: Seconds
    """Mean time to the last token, in seconds."""
    tokens_per_s: Rate
    """Completion tokens per second."""
    requests_per_s: Rate
    """Answered requests per second."""
    sequences: Annotated[float, Field(ge=0)]
    """Mean number of requests in flight, waiting ones included."""


class ReplicasData(Documented):
    """The replicas that a load needs with one way to draft."""

    replicas: Annotated[int, Field(ge=1)] | None
    """Replicas that meet the goals; null if no number of them does."""
    users_of_one: Count
    """The most users that one replica serves within the goals, at most those of the load."""
    tokens_per_s: Rate
    """Completion tokens per second of all replicas together."""
    one: SimulatedData
    """One replica with its share of the users; with a single user if no number of replicas meets the goals."""
    curve: list[SimulatedData]
    """One replica with other numbers of users."""


class LoadData(Documented):
    """How many replicas a load needs."""

    users: Annotated[int, Field(ge=1)]
    """Users; each sends its next request after reading an answer."""
    think_s: Seconds
    """Mean time between an answer and the next request of a user, in seconds."""
    prompt_tokens: Annotated[int, Field(ge=1)]
    """Mean tokens of a prompt."""
    answer_tokens: Annotated[int, Field(ge=1)]
    """Mean tokens of an answer."""
    spread: Annotated[float, Field(ge=0)]
    """Coefficient of variation of both; 0 if all requests are equal."""
    p95_ttft_s: Seconds | None
    """Goal: 95th percentile of the time to the first token, in seconds; null if there is none."""
    p95_answer_s: Seconds | None
    """Goal: 95th percentile of the time to the last token, in seconds; null if there is none."""
    basis: Basis
    """Where the speed of one replica comes from: figures of `bench`, or the speed model."""
    source: str
    """The same in words."""
    with_drafts: ReplicasData | None
    """With speculative decoding; null without a drafter, or if nothing is known of it."""
    without_drafts: ReplicasData | None
    """Without speculative decoding; null if nothing is known of it."""
    drafts_pay_below: Annotated[int, Field(ge=1)] | None
    """The least number of sequences at the same time at which drafts are no faster; null if there is none."""
    notes: list[str]
    """Limits of this result, in words."""


class AskedData(Documented):
    """What the engine says about the plan, asked without weights (`--ask-engine`)."""

    engine: str
    """The engine that was asked, with its version."""
    verdict: Literal["accepts", "refuses", "cannot be asked", "did not answer"]
    """Whether it made its configuration."""
    said: str
    """The engine's own sentence if it refuses, or what is known of its end; empty if it accepts."""
    decided: dict[str, str]
    """What the engine chose, by name, such as `attention_backend`; empty unless it accepts."""
    seconds: Seconds
    """Duration of the question in seconds."""


class PlanData(Documented):
    """What `plan` decides, and why."""

    profile: str
    """Name of the hardware profile."""
    engine: str
    """Name of the engine release."""
    pair: str
    """Name of the model: a target with its drafter."""
    runtime: RuntimeName
    """What runs the engine: containers (`compose`) or a process on this machine (`native`)."""
    command: list[str]
    """Argument list of the engine, without the API key."""
    settings: list[SettingData]
    """All settings of the deployment, in the order of `.env`."""
    memory: MemoryData | None
    """The estimated memory; null if it cannot be estimated."""
    speed: SpeedData
    """The speed to expect."""
    load: LoadData | None
    """How many replicas the load of `--load` needs; null without that option."""
    asked: AskedData | None
    """What the engine says about the plan; null without `--ask-engine`."""


class InitData(Documented):
    """The deployment that `init` wrote."""

    directory: str
    """The deployment directory."""
    profile: str
    """Name of the hardware profile."""
    pair: str
    """Name of the model: a target with its drafter."""
    engine: str
    """Name of the engine release."""
    runtime: RuntimeName
    """What runs the engine: containers (`compose`) or a process on this machine (`native`)."""


class RenderData(Documented):
    """The file that `render` wrote."""

    file: str
    """Path of compose.yaml."""
    changed: bool
    """Whether the file changed."""


class DoctorCheckData(Documented):
    """One check of `doctor`."""

    name: str
    """Name of the check."""
    status: DoctorStatus
    """`no`: `up` would fail. `warning`: `up` may fail, or the check cannot decide. `skipped`: nothing to check."""
    saw: str
    """What was found, with the values."""
    fix: str
    """What to do if the status is not `ok`; empty if nothing is known."""
    seconds: Seconds
    """Duration of the check in seconds."""


class DoctorData(Documented):
    """What `doctor` found."""

    checks: list[DoctorCheckData]
    """All checks, in the order in which they ran."""
