"""Model families: a base model, the drafter that was trained for it, and its published quantizations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Self, TypeVar

from pydantic import Field, field_validator, model_validator

from dflash_deploy.catalog.schema import Entry, Quantisation, Settings


class Attention(Entry):
    """Layers with full attention; their KV cache grows with every token."""

    layers: Annotated[int, Field(ge=0)]
    heads: Annotated[int, Field(gt=0)]
    kv_heads: Annotated[int, Field(gt=0)]
    head_dim: Annotated[int, Field(gt=0)]
    shared_kv: Annotated[bool, Field(description="keys and values are one tensor")] = False


class SlidingAttention(Attention):
    """Layers that attend only to a window; their KV cache stops growing at its size."""

    window: Annotated[int, Field(gt=0, description="tokens")]


class LatentAttention(Entry):
    """Multi-head latent attention (MLA): one compressed vector per token and layer."""

    layers: Annotated[int, Field(ge=0)]
    heads: Annotated[int, Field(gt=0)]
    width: Annotated[int, Field(gt=0, description="elements kept per token and layer: latent rank plus rotary part")]


class LinearAttention(Entry):
    """Layers with a recurrent state of fixed size (gated delta net): one state per sequence of any length."""

    layers: Annotated[int, Field(ge=0)]
    key_heads: Annotated[int, Field(gt=0)]
    value_heads: Annotated[int, Field(gt=0)]
    key_dim: Annotated[int, Field(gt=0)]
    value_dim: Annotated[int, Field(gt=0)]
    conv_kernel: Annotated[int, Field(gt=0)] = 4


Layers = TypeVar("Layers", Attention, SlidingAttention, LatentAttention, LinearAttention)


class Shape(Entry):
    """The numbers of a base model's config.json that determine memory and speed."""

    layers: Annotated[int, Field(gt=0)]
    hidden_size: Annotated[int, Field(gt=0)]
    vocabulary: Annotated[int, Field(gt=0)]
    context: Annotated[int, Field(gt=0, description="longest supported sequence in tokens")]
    parameters: Annotated[float, Field(gt=0, description="all parameters, including the vision tower")]
    active_parameters: Annotated[
        float | None,
        Field(gt=0, description="parameters that one token uses; `null` for a dense model: all of them"),
    ] = None
    experts: Annotated[tuple[int, int] | None, Field(description="experts per layer, and active per token")] = None
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
    """A repository on the Hugging Face Hub, or a directory that is part of the package."""

    repo: Annotated[str | None, Field(description="repository id on the Hugging Face Hub")] = None
    revision: Annotated[str | None, Field(description="commit of the repository; `null`: the newest")] = None
    bundled: Annotated[str | None, Field(description="path among the package's assets")] = None
    file: Annotated[str | None, Field(description="the one file of the repository that is used (GGUF)")] = None
    bytes: Annotated[int, Field(gt=0, description="size of the weights on disk")]
    licence: str = ""
    gated: Annotated[bool, Field(description="the Hub requires an account that accepted the terms")] = False
    source: Annotated[str, Field(description="source of size, licence and gating")] = ""

    def download(self, directory: str) -> str:
        """The command of the Hugging Face client that downloads the weights, for users who do not use `pull`."""
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
        int, Field(ge=2, description="tokens of a block, including the anchor; draft tokens are one fewer")
    ]
    layers: Annotated[int, Field(gt=0)]
    hidden_size: Annotated[int | None, Field(description="must equal the target's; `null` if unknown")] = None
    kv_heads: Annotated[int, Field(gt=0)] = 8
    head_dim: Annotated[int, Field(gt=0)] = 128
    target_layer_ids: Annotated[list[int], Field(description="target layers whose output the drafter reads")] = []
    layer_types: Annotated[
        Literal["full", "sliding", "mixed"] | None, Field(description="attention of its layers; `null` if unknown")
    ] = None
    trained_context: Annotated[int | None, Field(description="longest sequence in tokens it was trained on")] = None
    quantised: bool = False

    @property
    def most_draft_tokens(self) -> int:
        """Draft tokens of a whole block: its first position is the last accepted token."""
        return self.block_size - 1


class Target(Weights):
    """One published quantization of the base model."""

    name: Annotated[str, Field(description="name of the pair that this target makes with its drafter")]
    title: str
    quantisation: Quantisation
    served_name: Annotated[str, Field(description="the model's name in requests")]
    projector: Annotated[str | None, Field(description="vision projector of a GGUF, a file of the repository")] = None
    drafter: Annotated[Drafter | None, Field(description="if this quantization needs another drafter")] = None
    notice: Annotated[str, Field(description="what the user must know before serving it")] = ""
    forced_fp8_kv: Annotated[bool, Field(description="the checkpoint asks for an FP8 KV cache")] = False
    settings: Settings = {}


class Question(Entry):
    """A question whose answer can be checked, for the smoke test."""

    ask: str
    expect: Annotated[str, Field(description="must occur in the answer, in upper or lower case")]


class Counting(Entry):
    """A request to write every number from `first` to `last`: its answer is known by heart."""

    ask: str
    first: int
    last: int

    @property
    def numbers(self) -> list[int]:
        """The numbers of the right answer, in order."""
        step = 1 if self.first <= self.last else -1
        return list(range(self.first, self.last + step, step))


class Questions(Entry):
    """The requests that `test` sends. The defaults are for general models."""

    text: Question = Question(ask="What is the capital of France? Answer with one word.", expect="Paris")
    long: Annotated[
        str, Field(description="a request whose answer has at least 60 tokens, to measure drafts and speed")
    ] = "Write a Python function that returns the n-th Fibonacci number, with a docstring and three examples."
    count: Annotated[str, Field(description="a request to write every number from 1 to 50")] = (
        "Count from 1 to 50. Write every number, separated by commas, and nothing else."
    )
    by_heart: Annotated[
        list[Counting],
        Field(min_length=1, description="requests to count otherwise: drafts that are rejected must not change them"),
    ] = [
        Counting(
            ask="Count from 1 to 40. Write every number, separated by commas, and nothing else.", first=1, last=40
        ),
        Counting(
            ask="Count down from 30 to 1. Write every number, separated by commas, and nothing else.", first=30, last=1
        ),
    ]
    vision: Annotated[str, Field(description="a request for the colour of an image")] = (
        "What colour is this image? Answer with one word."
    )
    limits: Annotated[
        str, Field(description="why it can answer only these requests: the reason of checks that are skipped")
    ] = ""


class Acceptance(Entry):
    """A measured mean acceptance length, including the token that the target adds."""

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
        Field(description="whether it thinks by default; `none`: it cannot think, `always`: it always thinks"),
    ] = "none"
    drafter_thinking: Annotated[
        bool | Literal["both"] | None,
        Field(description="whether the drafter was trained with thinking, or with and without; `null` if unknown"),
    ] = None
    reasoning_parser: str | None = None
    tool_call_parser: str | None = None
    needs: Annotated[
        dict[str, str], Field(description="lowest version of each engine that supports the architecture")
    ] = {}
    acceptance: list[Acceptance] = []
    settings: Settings = {}
    source: Annotated[str, Field(description="source of the shape and of the drafter's config")]


@dataclass(frozen=True)
class ModelPair:
    """A target and the drafter that belongs to it."""

    family: Family
    target: Target

    @property
    def name(self) -> str:
        """The name of the pair: the name of its target."""
        return self.target.name

    @property
    def title(self) -> str:
        """The title, one line."""
        return self.target.title

    @property
    def drafter(self) -> Drafter:
        """The target's own drafter, else the drafter of its family."""
        return self.target.drafter or self.family.drafter

    @property
    def shape(self) -> Shape:
        """The base model's shape."""
        return self.family.shape

    @property
    def sees(self) -> bool:
        """Whether this target accepts images. A GGUF also needs a projector."""
        return self.shape.vision_parameters > 0 and (self.target.quantisation != "gguf" or bool(self.target.projector))

    @property
    def text(self) -> Question:
        """A question whose answer can be checked."""
        return self.family.text

    @property
    def long(self) -> str:
        """A request whose answer has at least 60 tokens."""
        return self.family.long

    @property
    def vision(self) -> str:
        """A request for the colour of an image."""
        return self.family.vision
