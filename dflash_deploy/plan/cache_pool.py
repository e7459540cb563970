"""The KV cache as vLLM pools it: the kinds of layers of target and drafter, their pages, and what a sequence takes.

All layers share one pool of blocks, each as large as the largest kind of layer needs (v1/core/kv_cache_planning.py of
0.33; kv_cache_utils.py of 0.32). Layers form groups as small as the smallest kind, and a sequence takes whole blocks in
every group. tests/engine compares the count with the real engine. SGLang has a pool for KV and one for recurrent states
(`pools`), llama.cpp takes whole contexts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from dflash_deploy.catalog.models import Attention, Drafter, ModelPair, Shape

# Bytes of one element by the start of the type's name; block formats with their scales. Other types have two.
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
    steps_in_flight: int
    """Steps whose tokens a window keeps until they are settled: vLLM's asynchronous scheduling overlaps two on GPUs.

    Source: `max_in_flight_tokens` and `max_concurrent_batches` of vLLM's config/vllm.py, 0.33.0.
    """
    block_tokens: int = 16
    states: int | None = None
    """Recurrent states that a sequence holds; `None`: one for every position of a step, as in vLLM."""
    drafter_kv_cache_dtype: str = ""
    """The type of the drafter's KV cache; empty: the target's."""
    whole_contexts: bool = False
    """Whether the engine takes the cache of all sequences when it starts, as llama.cpp does, and not page by page."""
    caches: int = 1
    """KV caches of a sequence: the fork of llama.cpp has one more as a backup."""
    most_at_once: int | None = None
    """Most tokens that the engine computes at once, if fewer than `max_num_batched_tokens`."""
    reserve_within: bool = True
    """Whether the share includes activations and graphs; SGLang's does not."""
    cache_bytes: int | None = None
    """The cache's size if it is set directly, as for the CPU engine."""
    drafter_windows: bool = False
    """Whether the engine frees what is outside the window of a drafter's layer."""
    uses_mtp_head: bool = False
    """Whether the target's MTP head makes drafts: no further weights, and one more layer of full attention."""
    unified: bool = False
    """Whether the system uses the same memory."""
    state_ratio: float | None = None
    """Memory of recurrent states through that of KV, if each has a pool of its own; `None`: they share one."""
    eager: bool = False
    """Whether no CUDA graphs are captured."""
    kept: int = 0
    """Bytes that are left to the system, whatever the share; 0 with a share that is set."""


@dataclass(frozen=True)
class _Layers:
    """Layers with the same cache before pages are made equal: bytes of one token, or of one recurrent state."""

    count: int = field(compare=False)
    per_token: int = 0
    """0 for a recurrent state."""
    state: int = 0
    states: int = 0
    window: int | None = None
    heads: tuple[int, int] = (0, 0)
    """KV heads on one GPU and elements of a head: layers that agree in them share a group."""


@dataclass(frozen=True)
class Kind:
    """Layers with the same cache: `page` bytes per block in each layer, `blocks` blocks per sequence."""

    layers: int
    page: int
    tokens: int
    """Tokens per block; 0 for a recurrent state."""
    blocks: int


def bytes_per_element(kv_cache_dtype: str) -> float:
    """Bytes of one element of the KV cache; `auto` and the 16-bit types have two."""
    name = kv_cache_dtype.lower()
    return next((size for start, size in _KV_BYTES.items() if name.startswith(start)), 2.0)


def kinds_of(pair: ModelPair, sizing: Sizing) -> list[Kind]:
    """The layers of target and drafter in a pool whose pages have one size, as `unify_kv_cache_spec_page_size` does.

    A smaller page gets more tokens if the largest is a multiple of it, else it is padded. An engine that takes whole
    contexts has no pool and no pages: there a page is a token.
    """
    layers = _merged([*_target_layers(pair.shape, sizing), *_drafter_layers(pair.drafter, sizing)])
    if sizing.whole_contexts:
        return [_kind(one, one.per_token or one.state, 1, sizing) for one in layers]
    block = _block_tokens(layers, sizing)
    pages = [block * one.per_token or one.state for one in layers]
    largest = max(pages, default=0)
    if all(one.per_token and one.window is None for one in layers):
        # one group, in which layers keep pages of different sizes
        return [_kind(one, page, block, sizing) for one, page in zip(layers, pages, strict=True)]
    kinds = []
    for one, page in zip(layers, pages, strict=True):
        scale = largest // page if one.per_token and largest % page == 0 else 1
        kinds.append(_kind(one, largest, block * scale, sizing))
    return kinds


def _merged(layers: list[_Layers]) -> list[_Layers]:
    """Layers of target and drafter with the same cache as one kind, as vLLM groups layers by their spec."""
    merged: dict[_Layers, int] = {}
    for one in layers:
        merged[one] = merged.get(one, 0) + one.count
    return [one if one.count == count else replace(one, count=count) for one, count in merged.items()]


def _block_tokens(layers: list[_Layers], sizing: Sizing) -> int:
    """Tokens of the target's blocks: enough that a block of attention is as large as a recurrent state.

    Source: `_align_hybrid_block_size` of vLLM's platforms/interface.py, 0.33.0.
    """
    state = max((one.state for one in layers), default=0)
    per_token = next((one.per_token for one in layers if one.per_token), 0)
    return sizing.block_tokens * max(1, math.ceil(state / (sizing.block_tokens * per_token))) if per_token else 0


def _kind(layers: _Layers, page: int, tokens: int, sizing: Sizing) -> Kind:
    if not layers.per_token:
        return Kind(layers.count, page, 0, layers.states)
    if layers.window is None:
        return Kind(layers.count, page, tokens, math.ceil(sizing.max_model_len / tokens))
    # SlidingWindowSpec.max_admission_blocks_per_request of vLLM's v1/kv_cache_interface.py, 0.33.0
    kept = min(layers.window - 1 + sizing.steps_in_flight * sizing.max_num_batched_tokens, sizing.max_model_len)
    return Kind(layers.count, page, tokens, math.ceil(kept / tokens) + 1)


def _target_layers(shape: Shape, sizing: Sizing) -> Iterator[_Layers]:
    full, sliding, latent = shape.full_attention, shape.sliding_attention, shape.latent_attention
    if full is not None:
        count = (full.layers + int(sizing.uses_mtp_head)) * sizing.caches
        yield _Layers(count, _kv_bytes(full, sizing), heads=_heads(full, sizing))
    if shape.linear_attention is not None:
        held = sizing.states or sizing.draft_tokens + (2 if sizing.prefix_caching else 1)
        yield _Layers(shape.linear_attention.layers, state=_state_bytes(shape, sizing), states=held)
    if sliding is not None:
        yield _Layers(sliding.layers, _kv_bytes(sliding, sizing), window=sliding.window, heads=_heads(sliding, sizing))
    if latent is not None:
        yield _Layers(latent.layers, int(latent.width * bytes_per_element(sizing.kv_cache_dtype)))


def _drafter_layers(drafter: Drafter, sizing: Sizing) -> Iterator[_Layers]:
    """The drafter's layers. Those with a window keep all tokens where the engine, or the window, is not known."""
    if not sizing.draft_tokens or sizing.uses_mtp_head:
        return
    heads = max(1, drafter.kv_heads // sizing.gpus)
    element = bytes_per_element(sizing.drafter_kv_cache_dtype or sizing.kv_cache_dtype)
    per_token = int(2 * heads * drafter.head_dim * element)
    windows = drafter.layers_with_window if sizing.drafter_windows else 0
    if windows:
        yield _Layers(windows, per_token, window=drafter.window, heads=(heads, drafter.head_dim))
    if windows < drafter.layers:
        yield _Layers(drafter.layers - windows, per_token, heads=(heads, drafter.head_dim))


def _heads(attention: Attention, sizing: Sizing) -> tuple[int, int]:
    return max(1, attention.kv_heads // sizing.gpus), attention.head_dim


def _kv_bytes(attention: Attention, sizing: Sizing) -> int:
    """Bytes of one token in one layer on one GPU: keys and values, KV heads repeated if there are fewer than GPUs."""
    heads, size = _heads(attention, sizing)
    tensors = 1 if attention.shared_kv else 2
    return int(tensors * heads * size * bytes_per_element(sizing.kv_cache_dtype))


def _state_bytes(shape: Shape, sizing: Sizing) -> int:
    """Bytes of one recurrent (SSM) state of one layer: the convolution's window with draft positions, and the state."""
    linear = shape.linear_attention
    if linear is None:
        return 0
    channels = 2 * linear.key_heads * linear.key_dim + linear.value_heads * linear.value_dim
    window = channels * (linear.conv_kernel - 1 + sizing.draft_tokens) * 2
    return (window + linear.bytes_per_state) // sizing.gpus


def full_sequences(pair: ModelPair, sizing: Sizing, cache: int) -> float:
    """Sequences of full length that the pools hold, or that fit beside each other if there is none."""
    if divided := pools(pair, sizing):
        return min(share * cache / taken for share, taken in divided)
    block, taken = _blocks(kinds_of(pair, sizing), pooled=not sizing.whole_contexts)
    return (cache // block) / taken if block else 0.0


def sequence_bytes(pair: ModelPair, sizing: Sizing) -> int:
    """Bytes of cache in which one sequence of full length fits."""
    if divided := pools(pair, sizing):
        return max(math.ceil(taken / share) for share, taken in divided)
    block, taken = _blocks(kinds_of(pair, sizing), pooled=not sizing.whole_contexts)
    return block * taken


def pools(pair: ModelPair, sizing: Sizing) -> tuple[tuple[float, int], ...]:
    """The pool of KV and the pool of recurrent states: the share of the cache, and bytes of a sequence in it.

    Empty if they share one pool. Source: `_handle_max_mamba_cache` of SGLang 0.5.23, with its prefix cache.
    """
    if sizing.state_ratio is None or pair.shape.linear_attention is None:
        return ()
    kinds = kinds_of(pair, replace(sizing, whole_contexts=True))
    growing = sum(kind.layers * kind.page * kind.blocks for kind in kinds if kind.tokens)
    states = sum(kind.layers * kind.page * kind.blocks for kind in kinds if not kind.tokens)
    whole = 1 + sizing.state_ratio
    return (1 / whole, growing), (sizing.state_ratio / whole, states)


def _blocks(kinds: list[Kind], *, pooled: bool) -> tuple[int, int]:
    """Bytes of a block of the pool, and the blocks that a sequence of full length takes; one byte each without a pool.

    Source: `get_kv_cache_groups` of vLLM's v1/core/kv_cache_planning.py, 0.33.0, without packed layouts.
    """
    if not kinds:
        return 0, 0
    if not pooled:
        return 1, sum(kind.layers * kind.page * kind.blocks for kind in kinds)
    if len({(kind.tokens, kind.blocks) for kind in kinds}) == 1:
        return sum(kind.layers * kind.page for kind in kinds), kinds[0].blocks
    least, most = min(kind.layers for kind in kinds), max(kind.layers for kind in kinds)
    # a few layers more than the smallest kind do not make a separate group
    group = most if most < 1.5 * least else least
    block = group * max(kind.page for kind in kinds)
    return block, sum(math.ceil(kind.layers / group) * kind.blocks for kind in kinds)
