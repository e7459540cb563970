"""The schema of the catalog. Each class is one kind of YAML file; unknown keys are refused."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Evidence = Literal["verified", "reported", "untested"]
"""`verified`: run by this project. `reported`: by the source named. `untested`: read or inferred, not run."""


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Choice(_Entry):
    """The value of one setting, with its reason."""

    value: str | int | float | bool
    reason: Annotated[str, Field(min_length=10, description="why this value, in one sentence for the owner of the box")]
    source: Annotated[str, Field(description="where the fact was read or measured")] = ""


class Match(_Entry):
    """Which machines a profile fits."""

    gpus: Annotated[int, Field(ge=0, description="how many GPUs; 0 is a machine without any")]
    compute_capability: Annotated[str | None, Field(description="as nvidia-smi prints it, such as 12.1")] = None


class Evidenced(_Entry):
    """How far a profile is known to work."""

    state: Evidence
    by: Annotated[str, Field(description="who ran it, on what, when")]


class Profile(_Entry):
    """One kind of machine: what it is recognised by, and the settings that suit it."""

    name: str
    title: str
    match: Match
    engine: Annotated[str, Field(description="name of an engine release")]
    pair: Annotated[str, Field(description="name of the model pair that it serves unless asked otherwise")]
    compose: Annotated[list[str], Field(description="fragments of compose/ that are merged, in order")]
    unified_memory: bool = False
    evidence: Evidenced
    settings: Annotated[dict[str, Choice], Field(description="settings by the name they have in .env")]


class Weights(_Entry):
    """A model: a repository of the hub, or a directory that the package carries."""

    repo: Annotated[str | None, Field(description="repository id on the hub")] = None
    bundled: Annotated[str | None, Field(description="path among the package's assets")] = None
    bytes: Annotated[int, Field(gt=0, description="size of the weights on disk")]
    licence: str = ""


class DrafterWeights(Weights):
    """A drafter: the block it was trained on bounds the draft tokens."""

    block_size: Annotated[
        int, Field(ge=2, description="tokens of a block, the anchor included; draft tokens are one fewer")
    ]


class Question(_Entry):
    """A question whose answer can be checked, for the smoke test."""

    ask: str
    expect: Annotated[str, Field(description="must occur in the answer, whatever its case")]


class Speed(_Entry):
    """A measured or published figure: tokens per second of one deployment."""

    concurrency: int
    plain: float | None = None
    dflash: float
    source: str


class ModelPair(_Entry):
    """A target and the drafter that belongs to it."""

    name: str
    title: str
    target: Weights
    drafter: DrafterWeights
    needs: Annotated[list[str], Field(description="abilities that the engine must provide to load the target")] = []
    notice: Annotated[str, Field(description="what its user must know before serving it")] = ""
    settings: dict[str, Choice]
    text: Question
    long: Annotated[str, Field(description="a request that brings at least 60 tokens, to measure drafts and speed by")]
    vision: Annotated[str, Field(description="how to ask for the colour of an image")]
    speeds: list[Speed] = []


class EngineRelease(_Entry):
    """One release of an engine: its image, and what it can do."""

    name: str
    engine: Literal["vllm"]
    version: str
    cpu: bool = False
    image: Annotated[str, Field(description="tag of the project's image for it")]
    base_image: Annotated[str, Field(description="what that image is built on")]
    base_image_seen: Annotated[
        bool, Field(description="whether the tag was seen in use by somebody, or is only the expected name")
    ]
    native: Annotated[str, Field(description="the extra that installs it for the native runtime")]
    provides: Annotated[list[str], Field(description="abilities that model pairs may need")] = []
