"""Model families: a base model, the drafter that was trained for it, and its published quantizations."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from datetime import date
from typing import Annotated, ClassVar, Literal, Self, TypeVar

import yaml
from pydantic import Field, field_validator, model_validator

from dflash_deploy.assets import asset
from dflash_deploy.catalog.read import AttentionTrait, Entry, Quantisation, Settings
from dflash_deploy.serve.settings import Settings as Environment


class Attention(Entry):
    """Layers with full attention; their KV cache grows with every token."""

    layers: Annotated[int, Field(ge=0, description="number of layers")]
    heads: Annotated[int, Field(gt=0, description="attention heads")]
    kv_heads: Annotated[int, Field(gt=0, description="KV heads")]
    head_dim: Annotated[int, Field(gt=0, description="elements of a head")]
    shared_kv: Annotated[bool, Field(description="keys and values are one tensor")] = False


class SlidingAttention(Attention):
    """Layers that attend only to a window; their KV cache stops growing at its size."""

    window: Annotated[int, Field(gt=0, description="tokens")]


class LatentAttention(Entry):
    """Multi-head latent attention (MLA): one compressed vector per token and layer."""

    layers: Annotated[int, Field(ge=0, description="number of layers")]
    heads: Annotated[int, Field(gt=0, description="attention heads")]
    width: Annotated[int, Field(gt=0, description="elements kept per token and layer: latent rank plus rotary part")]


class LinearAttention(Entry):
    """Layers with a recurrent state of fixed size (gated delta net): one state per sequence of any length."""

    layers: Annotated[int, Field(ge=0, description="number of layers")]
    key_heads: Annotated[int, Field(gt=0, description="heads of keys")]
    value_heads: Annotated[int, Field(gt=0, description="heads of values")]
    key_dim: Annotated[int, Field(gt=0, description="elements of a key")]
    value_dim: Annotated[int, Field(gt=0, description="elements of a value")]
    conv_kernel: Annotated[int, Field(gt=0, description="width of the convolution in tokens")] = 4
    state_bytes: Annotated[
        int, Field(gt=0, le=4, description="bytes of one element of the state: 4 for FP32, 2 for BF16")
    ] = 4

    @property
    def bytes_per_state(self) -> int:
        """Bytes of the state of one layer, without the window of the convolution."""
        return self.value_heads * self.value_dim * self.key_dim * self.state_bytes


# Licences with conditions that a user must read first.
_RESTRICTED = re.compile(r"\bNC\b|non-?commercial|community licen[sc]e|^other\b", re.IGNORECASE)

Layers = TypeVar("Layers", Attention, SlidingAttention, LatentAttention, LinearAttention)


class Shape(Entry):
    """The numbers of a base model's config.json that determine memory and speed."""

    layers: Annotated[int, Field(gt=0, description="number of layers")]
    hidden_size: Annotated[int, Field(gt=0, description="elements of a hidden state")]
    vocabulary: Annotated[int, Field(gt=0, description="number of tokens in the vocabulary")]
    context: Annotated[int, Field(gt=0, description="longest supported sequence in tokens")]
    parameters: Annotated[float, Field(gt=0, description="all parameters, including the vision tower")]
    active_parameters: Annotated[
        float | None,
        Field(gt=0, description="parameters that one token uses; `null` for a dense model: all of them"),
    ] = None
    experts: Annotated[tuple[int, int] | None, Field(description="experts per layer, and active per token")] = None
    full_attention: Annotated[Attention | None, Field(description="layers with full attention")] = None
    sliding_attention: Annotated[SlidingAttention | None, Field(description="layers with a window")] = None
    latent_attention: Annotated[LatentAttention | None, Field(description="layers with MLA")] = None
    linear_attention: Annotated[LinearAttention | None, Field(description="layers with a recurrent state")] = None
    attention_needs: Annotated[
        list[AttentionTrait],
        Field(
            description="what an attention backend must be able to do: `image-prefix` (tokens of an image attend to "
            "each other in both directions), `sinks` (a learned sink in each head), `latent` (MLA)"
        ),
    ] = []
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
    """A repository on the Hugging Face Hub, a directory of this machine, or one that is part of the package."""

    repo: Annotated[str | None, Field(description="repository id on the Hugging Face Hub")] = None
    revision: Annotated[str | None, Field(description="commit of the repository; `null`: the newest")] = None
    bundled: Annotated[str | None, Field(description="path among the package's assets")] = None
    path: Annotated[str | None, Field(description="directory of this machine with the weights")] = None
    file: Annotated[str | None, Field(description="the one file of the repository that is used (GGUF)")] = None
    bytes: Annotated[int, Field(gt=0, description="size of the weights on disk")]
    licence: Annotated[str, Field(description="licence of the weights; empty if none is stated")] = ""
    gated: Annotated[bool, Field(description="the Hub requires an account that accepted the terms")] = False
    source: Annotated[str, Field(description="source of size, licence and gating")] = ""

    @property
    def usable(self) -> bool:
        """Whether you may download and use it without conditions: not gated, and with a licence for commercial use."""
        return not self.gated and not _RESTRICTED.search(self.licence)

    @model_validator(mode="after")
    def _has_a_place(self) -> Self:
        if [self.repo, self.bundled, self.path].count(None) != 2:
            raise ValueError("one of `repo`, `bundled` and `path` must be set")
        if self.bundled is not None:
            try:
                asset(self.bundled)
            except FileNotFoundError:
                raise ValueError(f"`bundled`: the package has no {self.bundled}") from None
        return self

    _same: ClassVar[tuple[str, ...]] = ()  # further settings with the directory of the weights

    def remedy(self, directory: str, setting: str) -> str:
        """What to do if the weights are missing in `directory`, the value of `setting`, as a hint.

        It names the command of the Hugging Face client, for users who do not use `pull`.
        """
        if self.bundled is not None:
            values = shlex.join(f"{name}={asset(self.bundled)}" for name in (setting, *self._same))
            return f"`dflash-deploy set {values}` takes the one which comes with dflash-deploy"
        if self.path is not None:
            return f"copy the weights there again, or set {setting} in .env"
        parts = ["hf download", self.repo or "REPOSITORY"]
        if self.file:
            parts.append(self.file)
        if self.revision:
            parts.append(f"--revision {self.revision}")
        command = " ".join([*parts, "--local-dir", directory])
        return f"download it with `dflash-deploy pull` (or `{command}`), or set {setting} in .env"


class Drafter(Weights):
    """The block-diffusion drafter of one base model."""

    _same = (Environment.dflash_drafter.name,)

    architecture: Annotated[
        Literal["DFlashDraftModel", "DFlash2DraftModel", "dflash", "dflash-draft"],
        Field(description="`architectures` of config.json, or `general.architecture` of a GGUF"),
    ] = "DFlashDraftModel"
    absent: Annotated[bool, Field(description="no draft model is known for the target, which decodes without one")] = (
        False
    )
    block_size: Annotated[
        int, Field(ge=2, description="tokens of a block, including the anchor; draft tokens are one fewer")
    ]
    layers: Annotated[int, Field(gt=0, description="number of layers")]
    hidden_size: Annotated[int | None, Field(description="must equal the target's; `null` if unknown")] = None
    kv_heads: Annotated[int, Field(gt=0, description="KV heads")] = 8
    head_dim: Annotated[int, Field(gt=0, description="elements of a head")] = 128
    target_layer_ids: Annotated[list[int], Field(description="target layers whose output the drafter reads")] = []
    layer_types: Annotated[
        Literal["full", "sliding", "mixed"] | None, Field(description="attention of its layers; `null` if unknown")
    ] = None
    window: Annotated[
        int | None, Field(gt=0, description="tokens that its sliding layers attend to; `null` if unknown")
    ] = None
    trained_context: Annotated[int | None, Field(description="longest sequence in tokens it was trained on")] = None
    quantised: Annotated[bool, Field(description="its weights are quantized")] = False
    quantisation: Annotated[
        Quantisation | None,
        Field(description="how they are stored, if an engine needs an argument for it"),
    ] = None

    @property
    def layers_with_window(self) -> int:
        """Layers whose window is known. The last layer of a mixed drafter has full attention."""
        if self.window is None:
            return 0
        return {"sliding": self.layers, "mixed": self.layers - 1}.get(self.layer_types or "", 0)

    @property
    def most_draft_tokens(self) -> int:
        """Draft tokens of a whole block: its first position is the last accepted token."""
        return self.block_size - 1


class Target(Weights):
    """One published quantization of the base model."""

    name: Annotated[str, Field(description="name of the pair that this target makes with its drafter")]
    title: Annotated[str, Field(description="the model in words")]
    quantisation: Annotated[Quantisation, Field(description="how the weights are stored")]
    served_name: Annotated[str, Field(description="the model's name in requests")]
    projector: Annotated[str | None, Field(description="vision projector of a GGUF, a file of the repository")] = None
    drafter: Annotated[Drafter | None, Field(description="if this quantization needs another drafter")] = None
    notice: Annotated[str, Field(description="what the user must know before serving it")] = ""
    forced_fp8_kv: Annotated[bool, Field(description="the checkpoint asks for an FP8 KV cache")] = False
    most_gpus: Annotated[
        int | None, Field(ge=1, description="most GPUs that can split a layer of these weights; `null`: any number")
    ] = None
    settings: Annotated[Settings, Field(description="settings for this quantization")] = {}

    level: Annotated[
        str, Field(description="who measured that its answers are as good as those of BF16; empty: not measured")
    ] = ""

    @property
    def aligned(self) -> bool:
        """Whether the notice does not say that the safety alignment was removed."""
        return "safety alignment" not in self.notice


class Question(Entry):
    """A question whose answer can be checked, for the smoke test."""

    ask: Annotated[str, Field(description="the request")]
    expect: Annotated[str, Field(description="must occur in the answer, in upper or lower case")]


class Counting(Entry):
    """A request to write every number from `first` to `last`: its answer is known by heart."""

    ask: Annotated[str, Field(description="the request")]
    first: Annotated[int, Field(description="first number of the answer")]
    last: Annotated[int, Field(description="last number of the answer; smaller than the first to count down")]

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
    unknown: Annotated[
        bool,
        Field(description="the entry was read from headers: a check that expects knowledge is skipped, not failed"),
    ] = False
    limits: Annotated[
        str, Field(description="why it can answer only these requests: the reason of checks that are skipped")
    ] = ""


# Kinds of text that drafts are accepted differently in: those of `bench`, and long documents.
Text = Literal["chat", "code", "maths", "long", "vision"]


class Acceptance(Entry):
    """A measured mean acceptance length, including the token that the target adds."""

    workload: Annotated[str, Field(description="what was generated")]
    text: Annotated[Text | None, Field(description="its kind of text; `null` if it is mixed or not stated")] = None
    of: Annotated[str | None, Field(description="the nearest family, if it was measured there and not here")] = None
    draft_tokens: Annotated[int, Field(description="per step, without the token that the target adds")]
    length: Annotated[float, Field(ge=1, description="tokens per step")]
    source: Annotated[str, Field(description="who measured it")]


class Family(Questions):
    """A base model with its drafter. One file each."""

    name: Annotated[str, Field(description="name of the family")]
    title: Annotated[str, Field(description="the base model in words")]
    released: Annotated[
        date | None, Field(description="when its weights were published; `null`: unknown, and older than all others")
    ] = None
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
    reasoning_parser: Annotated[str | None, Field(description="vLLM's parser of its thoughts; `null`: none")] = None
    tool_call_parser: Annotated[str | None, Field(description="vLLM's parser of its tool calls; `null`: none")] = None
    needs: Annotated[
        dict[str, str], Field(description="lowest version of each engine that supports the architecture")
    ] = {}
    acceptance: Annotated[list[Acceptance], Field(description="measured acceptance lengths")] = []
    mtp_acceptance: Annotated[
        list[Acceptance], Field(description="those with the target's MTP head instead; empty: it has no MTP head")
    ] = []
    settings: Annotated[Settings, Field(description="settings for every quantization")] = {}
    source: Annotated[str, Field(description="source of the shape and of the drafter's config")]

    @property
    def own_acceptance(self) -> tuple[Acceptance, ...]:
        """The acceptance lengths that were measured with this family."""
        return tuple(one for one in self.acceptance if one.of is None)


class Dialect(Entry):
    """The parsers of a chat template that has all `marks`."""

    marks: Annotated[list[str], Field(min_length=1, description="texts of the template")]
    tools: Annotated[str | None, Field(description="vLLM's parser of tool calls")] = None
    reasoning: Annotated[str | None, Field(description="vLLM's parser of thoughts")] = None


def entry_text(family: Family) -> str:
    """An entry as the YAML of a custom catalog, without values that are the default."""
    return yaml.safe_dump(family.model_dump(mode="json", exclude_defaults=True), sort_keys=False, allow_unicode=True)


OF_8_BITS = frozenset({"bf16", "fp8", "mxfp8", "int8-compressed-tensors"})


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
    def exact(self) -> bool:
        """Whether its answers are those of BF16: weights of 8 bits or more, or measured to be level with BF16."""
        return self.target.quantisation in OF_8_BITS or bool(self.target.level)

    @property
    def toy(self) -> bool:
        """Whether it comes with the package, to try the program out on processors."""
        return self.target.bundled is not None

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
