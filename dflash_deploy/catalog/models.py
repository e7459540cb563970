"""Model families: a base model, the drafter made for it, and the forms in which its weights are published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Self, TypeVar

from pydantic import Field, field_validator, model_validator

from dflash_deploy.catalog.schema import Entry, Quantisation, Settings


class Attention(Entry):
    """Layers with ordinary attention, whose KV cache grows with every token."""

    layers: Annotated[int, Field(ge=0)]
    heads: Annotated[int, Field(gt=0)]
    kv_heads: Annotated[int, Field(gt=0)]
    head_dim: Annotated[int, Field(gt=0)]
    shared_kv: Annotated[bool, Field(description="keys and values are one tensor")] = False


class SlidingAttention(Attention):
    """Layers that look back over a window only: their cache stops growing there."""

    window: Annotated[int, Field(gt=0, description="tokens")]


class LatentAttention(Entry):
    """Multi-head latent attention (MLA): one compressed vector a token and layer."""

    layers: Annotated[int, Field(ge=0)]
    heads: Annotated[int, Field(gt=0)]
    width: Annotated[int, Field(gt=0, description="elements kept per token and layer: latent rank plus rotary part")]


class LinearAttention(Entry):
    """Layers with a recurrent state of fixed size (gated delta net): one state a sequence, however long."""

    layers: Annotated[int, Field(ge=0)]
    key_heads: Annotated[int, Field(gt=0)]
    value_heads: Annotated[int, Field(gt=0)]
    key_dim: Annotated[int, Field(gt=0)]
    value_dim: Annotated[int, Field(gt=0)]
    conv_kernel: Annotated[int, Field(gt=0)] = 4


Layers = TypeVar("Layers", Attention, SlidingAttention, LatentAttention, LinearAttention)


class Shape(Entry):
    """The numbers of a base model's config.json that memory and speed follow from."""

    layers: Annotated[int, Field(gt=0)]
    hidden_size: Annotated[int, Field(gt=0)]
    vocabulary: Annotated[int, Field(gt=0)]
    context: Annotated[int, Field(gt=0, description="longest sequence in tokens that it was made for")]
    parameters: Annotated[float, Field(gt=0, description="all parameters, the vision tower included")]
    active_parameters: Annotated[
        float | None,
        Field(gt=0, description="parameters one token passes through; `null` for a dense model: all of them"),
    ] = None
    experts: Annotated[tuple[int, int] | None, Field(description="experts per layer, and chosen per token")] = None
    full_attention: Attention | None = None
    sliding_attention: SlidingAttention | None = None
    latent_attention: LatentAttention | None = None
    linear_attention: LinearAttention | None = None
    vision_parameters: Annotated[float, Field(ge=0, description="parameters of the vision tower; 0 without vision")] = 0

    @field_validator("full_attention", "sliding_attention", "latent_attention", "linear_attention")
    @classmethod
    def _without_layers_is_absent(cls, kind: Layers | None) -> Layers | None:
        return kind if kind and kind.layers else None

    @model_validator(mode="after")
    def _parts_are_less_than_the_whole(self) -> Self:
        if self.experts and not 0 < self.experts[1] < self.experts[0]:
            raise ValueError("experts must be per layer, and fewer chosen per token (1 or more)")
        if not self.vision_parameters < (self.active_parameters or self.parameters) <= self.parameters:
            raise ValueError("vision_parameters < active_parameters <= parameters does not hold")
        return self


class Weights(Entry):
    """A repository of the hub, or a directory that the package carries."""

    repo: Annotated[str | None, Field(description="repository id on the hub")] = None
    revision: Annotated[str | None, Field(description="commit of the repository; the newest where it is left out")] = (
        None
    )
    bundled: Annotated[str | None, Field(description="path among the package's assets")] = None
    file: Annotated[str | None, Field(description="the one file of the repository that is used (GGUF)")] = None
    bytes: Annotated[int, Field(gt=0, description="size of the weights on disk")]
    licence: str = ""
    gated: Annotated[bool, Field(description="the hub asks for an account that accepted its terms")] = False
    source: Annotated[str, Field(description="where size, licence and gating were read")] = ""

    def download(self, directory: str) -> str:
        """The hub client's command that brings it, as a person types it who does not want `pull`."""
        parts = ["hf download", self.repo or "REPOSITORY"]
        if self.file:
            parts.append(self.file)
        if self.revision:
            parts.append(f"--revision {self.revision}")
        return " ".join([*parts, "--local-dir", directory])


class Drafter(Weights):
    """The block-diffusion drafter of one base model."""

    architecture: Annotated[
        Literal["DFlashDraftModel", "DFlash2DraftModel", "dflash", "dflash-draft"],
        Field(description="`architectures` of config.json, or `general.architecture` of a GGUF"),
    ] = "DFlashDraftModel"
    block_size: Annotated[
        int, Field(ge=2, description="tokens of a block, the anchor included; draft tokens are one fewer")
    ]
    layers: Annotated[int, Field(gt=0)]
    hidden_size: Annotated[int | None, Field(description="must be the target's, where it is known")] = None
    kv_heads: Annotated[int, Field(gt=0)] = 8
    head_dim: Annotated[int, Field(gt=0)] = 128
    target_layer_ids: Annotated[list[int], Field(description="target layers whose output the drafter reads")] = []
    layer_types: Annotated[
        Literal["full", "sliding", "mixed"] | None, Field(description="attention of its layers; `null` where unknown")
    ] = None
    trained_context: Annotated[int | None, Field(description="longest sequence in tokens it was trained on")] = None
    quantised: bool = False

    @property
    def most_draft_tokens(self) -> int:
        """Draft tokens of a whole block: its first position is the last accepted token."""
        return self.block_size - 1


class Target(Weights):
    """One published form of the base model's weights."""

    name: Annotated[str, Field(description="name of the pair that this target makes with its drafter")]
    title: str
    quantisation: Quantisation
    served_name: Annotated[str, Field(description="the model's name in requests")]
    projector: Annotated[str | None, Field(description="vision projector of a GGUF, a file of the repository")] = None
    drafter: Annotated[Drafter | None, Field(description="where this form needs another drafter than the family")] = (
        None
    )
    notice: Annotated[str, Field(description="what its user must know before serving it")] = ""
    forced_fp8_kv: Annotated[bool, Field(description="the checkpoint asks for an FP8 KV cache")] = False
    settings: Settings = {}


class Question(Entry):
    """A question whose answer can be checked, for the smoke test."""

    ask: str
    expect: Annotated[str, Field(description="must occur in the answer, whatever its case")]


class Questions(Entry):
    """What `test` asks. The defaults are for models of general use."""

    text: Question = Question(ask="What is the capital of France? Answer with one word.", expect="Paris")
    long: Annotated[
        str, Field(description="a request that brings at least 60 tokens, to measure drafts and speed by")
    ] = "Write a Python function that returns the n-th Fibonacci number, with a docstring and three examples."
    count: Annotated[str, Field(description="how to have it write every number from 1 to 50")] = (
        "Count from 1 to 50. Write every number, separated by commas, and nothing else."
    )
    vision: Annotated[str, Field(description="how to ask for the colour of an image")] = (
        "What colour is this image? Answer with one word."
    )
    limits: Annotated[
        str, Field(description="why it can be asked nothing but the above: checks that need more are skipped with this")
    ] = ""


class Acceptance(Entry):
    """Mean acceptance length that somebody measured, the token that the target adds included."""

    workload: str
    draft_tokens: int
    length: float
    source: str


class Family(Questions):
    """A base model with its drafter. One file each."""

    name: str
    title: str
    shape: Shape
    drafter: Drafter
    targets: Annotated[list[Target], Field(min_length=1)]
    thinking: Annotated[
        Literal["on", "off", "always", "none"],
        Field(description="whether it thinks unless told otherwise; `none`: it cannot, `always`: it cannot stop"),
    ] = "none"
    drafter_thinking: Annotated[
        bool | None, Field(description="whether the drafter was trained with thinking; `null` where nobody said")
    ] = None
    reasoning_parser: str | None = None
    tool_call_parser: str | None = None
    needs: Annotated[
        dict[str, str], Field(description="lowest version of an engine that knows the architecture, by engine")
    ] = {}
    acceptance: list[Acceptance] = []
    settings: Settings = {}
    source: Annotated[str, Field(description="where the shape and the drafter's config were read")]


@dataclass(frozen=True)
class ModelPair:
    """A target and the drafter that belongs to it."""

    family: Family
    target: Target

    @property
    def name(self) -> str:
        """The name by which people choose it."""
        return self.target.name

    @property
    def title(self) -> str:
        """One line for people."""
        return self.target.title

    @property
    def drafter(self) -> Drafter:
        """The target's own drafter, else that of its family."""
        return self.target.drafter or self.family.drafter

    @property
    def shape(self) -> Shape:
        """The base model's shape."""
        return self.family.shape

    @property
    def sees(self) -> bool:
        """Whether this form of the model takes images. A GGUF needs a projector beside it."""
        return self.shape.vision_parameters > 0 and (self.target.quantisation != "gguf" or bool(self.target.projector))

    @property
    def text(self) -> Question:
        """A question whose answer can be checked."""
        return self.family.text

    @property
    def long(self) -> str:
        """A request that brings at least 60 tokens."""
        return self.family.long

    @property
    def vision(self) -> str:
        """How to ask for the colour of an image."""
        return self.family.vision
