"""The `data` of `plan`, `init`, `pull` and `models show`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from dflash_deploy.catalog.models import Drafter, Family, Target
from dflash_deploy.catalog.speeds import PublishedSpeed
from dflash_deploy.document import AcceptanceLength, Count, Rate
from dflash_deploy.operations.ask_engine import Asked
from dflash_deploy.operations.foreign import ForeignPlan
from dflash_deploy.operations.plan import EngineOption
from dflash_deploy.plan.result import Decision, RuntimeName
from dflash_deploy.schemas.common import DocumentedDict

RateRange = Annotated[list[Rate], Field(min_length=2, max_length=2)]
LengthRange = Annotated[list[AcceptanceLength], Field(min_length=2, max_length=2)]


class MemoryData(DocumentedDict):
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


class ExpectedSpeedData(DocumentedDict):
    """What the speed model expects at one concurrency. A range has two numbers, the lowest and the highest."""

    concurrency: Count
    """Requests at the same time."""
    plain_tokens_per_s: RateRange
    """Tokens per second of all requests together, without speculative decoding."""
    dflash_tokens_per_s: RateRange | None
    """Tokens per second of all requests together, with the drafter; null without a drafter."""
    acceptance_length: LengthRange | None
    """Acceptance length behind `dflash_tokens_per_s`, in tokens per step; null without a drafter."""


class SpeedData(DocumentedDict):
    """The speed to expect on this machine."""

    expected: list[ExpectedSpeedData]
    """What the speed model expects, by concurrency; empty on a machine without a GPU."""
    published: list[PublishedSpeed]
    """What others published for the same hardware and models."""


class PlanData(DocumentedDict):
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
    settings: list[Decision]
    """All settings of the deployment, in the order of `.env`."""
    memory: MemoryData | None
    """The estimated memory; null if it cannot be estimated."""
    speed: SpeedData
    """The speed to expect."""
    asked: Asked | None
    """What the engine says about the plan; null without `--ask-engine`."""
    options: list[EngineOption] | None
    """Options of the release that contain the word of `--options`; null without it."""


class InitData(DocumentedDict):
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
    recipe: ForeignPlan | None
    """What became of each item of the recipe of `--from`; null without it."""


class ModelProfileData(DocumentedDict):
    """Whether one kind of hardware can serve a model."""

    name: str
    """Name of the hardware profile."""
    compatible: bool
    """Whether the profile can serve the model."""
    why_not: str
    """Why it cannot; empty if it can."""


def _without_targets(schema: dict[str, Any]) -> None:
    """Take out what the document has elsewhere."""
    for name in ("targets", "drafter"):
        del schema["properties"][name]
        schema["required"].remove(name)


class FamilyData(Family):
    """The base model."""

    model_config = ConfigDict(json_schema_extra=_without_targets)


class ModelsShowData(Target):
    """One model: the target's entry in the catalog, its drafter, its base model, and the hardware that can serve it."""

    drafter: Drafter
    family: FamilyData
    profiles: Annotated[
        list[ModelProfileData], Field(description="all hardware profiles, and whether they can serve it")
    ]


class PullWrongData(DocumentedDict):
    """What `--offline` and `--verify` found."""

    wrong: dict[str, str]
    """Each file that differs from dflash.lock, with the problem; empty if all match."""


class PullMovedData(DocumentedDict):
    """What `--check` found."""

    moved: dict[str, list[str]]
    """Each repository with a newer commit, with the locked files that it changes; empty if there is none."""


class PullToData(DocumentedDict):
    """What `--to` copied."""

    to: str
    """Directory that has the weights and dflash.lock now."""


PullFromData = TypedDict(
    "PullFromData", {"from": Annotated[str, Field(description="Directory that the weights and dflash.lock came from.")]}
)
PullFromData.__doc__ = "What `--from` copied."
