"""Whether a deployment fits into memory: what one GPU holds, and the context and sequences that its cache has room for.

The KV cache is counted as vLLM pools it (v1/core/kv_cache_utils.py of 0.32). All layers share one pool of blocks, each
as large as the largest kind of layer needs. Layers form groups as small as the smallest kind, and a sequence takes
whole blocks in every group. tests/engine compares the count with the real engine. SGLang and llama.cpp pool
differently; for them the same count is an estimate.

The rest is a rule of thumb, with every term named in `Reserve`. It has not been compared with a GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dflash_deploy.catalog.models import Attention, Drafter, ModelPair, Shape
from dflash_deploy.serve.settings import positions

STATE_BYTES = 4
"""Recurrent states are kept in FP32: `mamba_ssm_dtype` of Qwen3.5's config.json."""

GIB = 2**30

LEAST_CONTEXT = 2048
"""Tokens of a short conversation: a context below this is of no use."""

_KV_BYTES = {
    "fp8": 1.0,
    "int8": 1.0,
    "nvfp4": 0.5625,
    "int4": 0.5625,
    "q8_0": 1.0625,
    "q5_1": 0.75,
    "q5_0": 0.6875,
    "q4_1": 0.625,
    "q4_0": 0.5625,
    "iq4_nl": 0.5625,
    "turbo2_tcq": 0.28125,
    "turbo2": 0.3125,
    "turbo3_tcq": 0.40625,
    "turbo3": 0.4375,
    "turbo4": 0.5625,
}
"""Bytes of one element by the start of the type's name; block formats with their scales. Other types have two."""


@dataclass(frozen=True)
class Sizing:
    """The sizes that determine memory. `draft_tokens` is 0 without a drafter; `memory` is that of one GPU, in bytes."""

    memory: int
    utilization: float
    gpus: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    draft_tokens: int
    kv_cache_dtype: str
    prefix_caching: bool
    block_tokens: int = 16
    states: int | None = None
    """Recurrent states that a sequence holds; `None`: one for every position of a step, as in vLLM."""
    caches: int = 1
    """KV caches of a sequence: the fork of llama.cpp has one more as a backup."""
    reserve_within: bool = True
    """Whether the share includes activations and graphs; SGLang's does not."""
    cache_bytes: int | None = None
    """The cache's size if it is set directly, as for the CPU engine."""
    uses_mtp_head: bool = False
    """Whether the target's MTP head makes drafts: no further weights, and one more layer of full attention."""


@dataclass(frozen=True)
class Reserve:
    """Memory that holds neither weights nor cache, in bytes: an estimate."""

    context: int
    """CUDA context, NCCL, captured graphs."""
    activations: int
    """One step of `max_num_batched_tokens` through the widest layer, in BF16."""
    logits: int
    """Logits of every verified position, in FP32, twice."""

    @property
    def total(self) -> int:
        """The sum."""
        return self.context + self.activations + self.logits


@dataclass(frozen=True)
class MemoryFit:
    """One GPU's memory, in bytes, and the room in its cache: `tokens` of all sequences together."""

    budget: int
    target: int
    drafter: int
    reserve: int
    cache: int
    kv_per_token: int
    state_per_sequence: int
    tokens: int
    sequences: float
    """Sequences of the full length that fit."""
    short_sequences: float
    """Sequences of at most LEAST_CONTEXT tokens that fit: as many can be decoded at the same time."""

    @property
    def fits(self) -> bool:
        """Whether one sequence of the full length fits; engines refuse to start otherwise."""
        return self.sequences >= 1.0

    def row(self) -> dict[str, float | int | bool]:
        """The figures for `--json`."""
        return {
            "budget_bytes": self.budget,
            "target_bytes": self.target,
            "drafter_bytes": self.drafter,
            "reserve_bytes": self.reserve,
            "cache_bytes": self.cache,
            "kv_bytes_per_token": self.kv_per_token,
            "state_bytes_per_sequence": self.state_per_sequence,
            "cache_tokens": self.tokens,
            "full_sequences": round(self.sequences, 2),
            "short_sequences": round(self.short_sequences, 2),
            "fits": self.fits,
        }


@dataclass(frozen=True)
class _Kind:
    """Layers with the same cache: `page` bytes per block in each layer, `blocks` blocks per sequence."""

    layers: int
    page: int
    tokens: int
    """Tokens per block; 0 for a recurrent state."""
    blocks: int


def fit(pair: ModelPair, sizing: Sizing) -> MemoryFit:
    """Divide one GPU's memory between weights, reserve and cache."""
    drafting = sizing.draft_tokens > 0 and not sizing.uses_mtp_head
    budget = int(sizing.memory * sizing.utilization)
    target = pair.target.bytes // sizing.gpus
    drafter = pair.drafter.bytes // sizing.gpus if drafting else 0
    reserved = reserve(pair.shape, sizing).total
    left = budget - target - drafter - (reserved if sizing.reserve_within else 0)
    # weights take precedence on a processor too, whatever size its cache has
    cache = left if sizing.cache_bytes is None else min(sizing.cache_bytes, left)
    kinds = _kinds(pair, sizing)
    sequences = _full_sequences(kinds, max(cache, 0))
    return MemoryFit(
        budget=budget,
        target=target,
        drafter=drafter,
        reserve=reserved,
        cache=max(cache, 0),
        kv_per_token=sum(kind.layers * kind.page // kind.tokens for kind in kinds if kind.tokens),
        state_per_sequence=sum(kind.layers * kind.page * kind.blocks for kind in kinds if not kind.tokens),
        tokens=int(sequences * sizing.max_model_len),
        sequences=sequences,
        short_sequences=_full_sequences(
            _kinds(pair, replace(sizing, max_model_len=min(LEAST_CONTEXT, sizing.max_model_len))), max(cache, 0)
        ),
    )


def reserve(shape: Shape, sizing: Sizing) -> Reserve:
    """The estimate. It assumes that the widest layer is eight times the hidden size."""
    verified = sizing.max_num_seqs * positions(sizing.draft_tokens)
    return Reserve(
        context=int(1.5 * GIB),
        activations=sizing.max_num_batched_tokens * shape.hidden_size * 8 * 2 // sizing.gpus,
        logits=verified * shape.vocabulary * 4 * 2 // sizing.gpus,
    )


def bytes_per_element(kv_cache_dtype: str) -> float:
    """Bytes of one element of the KV cache; `auto` and the 16-bit types have two."""
    name = kv_cache_dtype.lower()
    return next((size for start, size in _KV_BYTES.items() if name.startswith(start)), 2.0)


def _kinds(pair: ModelPair, sizing: Sizing) -> list[_Kind]:
    shape = pair.shape
    kinds: list[_Kind] = []
    per_token = 0
    if shape.full_attention is not None:
        per_token = _kv_bytes(shape.full_attention, sizing)
    state = _state_bytes(shape, sizing)
    # vLLM makes a block of attention as large as a recurrent state
    block = sizing.block_tokens * max(1, math.ceil(state / (sizing.block_tokens * per_token))) if per_token else 0
    page = max(block * per_token, state)
    if shape.full_attention is not None and shape.full_attention.layers:
        layers = (shape.full_attention.layers + int(sizing.uses_mtp_head)) * sizing.caches
        kinds.append(_Kind(layers, page, block, math.ceil(sizing.max_model_len / block)))
    if shape.linear_attention is not None:
        held = sizing.states or sizing.draft_tokens + (2 if sizing.prefix_caching else 1)
        kinds.append(_Kind(shape.linear_attention.layers, page, 0, held))
    if shape.sliding_attention is not None:
        kinds.append(_sliding(shape, sizing, page))
    if shape.latent_attention is not None:
        width = int(shape.latent_attention.width * bytes_per_element(sizing.kv_cache_dtype))
        blocks = math.ceil(sizing.max_model_len / sizing.block_tokens)
        kinds.append(_Kind(shape.latent_attention.layers, width * sizing.block_tokens, sizing.block_tokens, blocks))
    if sizing.draft_tokens and not sizing.uses_mtp_head:
        kinds.append(_drafter_kind(pair.drafter, sizing, page))
    return kinds


def _sliding(shape: Shape, sizing: Sizing, page: int) -> _Kind:
    sliding = shape.sliding_attention
    assert sliding is not None  # noqa: S101 - the caller asked
    per_token = _kv_bytes(sliding, sizing)
    tokens = max(page // per_token, sizing.block_tokens)
    kept = min(sizing.max_model_len, sliding.window + sizing.max_num_batched_tokens)
    return _Kind(sliding.layers, max(page, tokens * per_token), tokens, math.ceil(kept / tokens) + 1)


def _drafter_kind(drafter: Drafter, sizing: Sizing, page: int) -> _Kind:
    """The drafter's layers keep every token, also with a window; their blocks grow to the size of the target's."""
    heads = max(1, drafter.kv_heads // sizing.gpus)
    per_token = int(2 * heads * drafter.head_dim * bytes_per_element(sizing.kv_cache_dtype))
    tokens = max(page // per_token, sizing.block_tokens)
    return _Kind(drafter.layers, max(page, tokens * per_token), tokens, math.ceil(sizing.max_model_len / tokens))


def _kv_bytes(attention: Attention, sizing: Sizing) -> int:
    """Bytes of one token in one layer on one GPU: keys and values, KV heads repeated if there are fewer than GPUs."""
    heads = max(1, attention.kv_heads // sizing.gpus)
    tensors = 1 if attention.shared_kv else 2
    return int(tensors * heads * attention.head_dim * bytes_per_element(sizing.kv_cache_dtype))


def _state_bytes(shape: Shape, sizing: Sizing) -> int:
    """Bytes of one recurrent (SSM) state of one layer: the convolution's window with draft positions, and the state."""
    linear = shape.linear_attention
    if linear is None:
        return 0
    channels = 2 * linear.key_heads * linear.key_dim + linear.value_heads * linear.value_dim
    window = channels * (linear.conv_kernel - 1 + sizing.draft_tokens) * 2
    return (window + linear.value_heads * linear.value_dim * linear.key_dim * STATE_BYTES) // sizing.gpus


def _full_sequences(kinds: list[_Kind], cache: int) -> float:
    """Sequences of full length that the pool holds."""
    if not kinds:
        return 0.0
    least, most = min(kind.layers for kind in kinds), max(kind.layers for kind in kinds)
    # a few layers more than the smallest kind do not make a separate group
    group = most if most < 1.5 * least else least
    block = group * max(kind.page for kind in kinds)
    taken = sum(math.ceil(kind.layers / group) * kind.blocks for kind in kinds)
    return (cache // block) / taken
