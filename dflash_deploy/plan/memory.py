"""How memory is divided: what fits into a GPU.

`fit` divides the memory of one GPU, and gives the context and sequences that its cache has room for. `cache_pool`
counts the cache. `Reserve` estimates what the engine's own profile finds besides weights: its terms follow what vLLM
holds at the same time, and their factors are from logs that others published. `python -m benchmarks memory` compares
the cache with them. Of unified memory an engine gets what its sizes need, and the system keeps its part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dflash_deploy.catalog.models import ModelPair
from dflash_deploy.document import Count, Documented, Hidden, Ratio, shown
from dflash_deploy.plan.cache_pool import Sizing, full_sequences, kinds_of, pools, sequence_bytes
from dflash_deploy.serve.speculation import positions

GIB = 2**30

# Hidden states per token of a step: in the widest layer, split over the GPUs; outside of it, on each of them; and
# copies of the drafter's input, which has one for each target layer that the drafter reads.
#
# vllm-project/vllm#50722 logs 5.66 GiB of peak activation for 40,000 tokens of a 35B-A3B on four GPUs, and 1.47 GiB
# for graphs and other memory; these factors give 5.6 and 1.5. An MTP head holds the hidden state, it and
# the embedding normalized, and the two joined.
IN_LAYER, IN_MODEL, COPIES_FOR_DRAFTER, COPIES_FOR_MTP = 10, 10, 2, 5

CONTEXT = 64 << 20  # bytes that an eager engine holds besides: NCCL, buffers of kernels

# Bytes of captured graphs: at least, and for each captured position. Those are twice the positions of a step with all
# sequences, up to MOST_CAPTURED (vLLM's config/vllm.py, 0.33).
#
# 1.34 GiB were logged at 256 positions (vllm-project/vllm#50722). At 512, 2.5 GiB beside the engine's share were too
# few (vllm-project/recipes#810).
GRAPHS, GRAPHS_OF_POSITION, MOST_CAPTURED = 1472 << 20, 4700 << 10, 512

IDLE = 4 * GIB  # bytes of unified memory that an idle system holds; SGLang's share is of what is free when it starts

STEP = 1024  # tokens by which a context is shortened
USUAL_TARGET_LAYERS = 5  # target layers that a drafter reads if the catalog does not have them
LEAST_CONTEXT = 2048  # tokens of a short conversation: a context below this is of no use


@dataclass(frozen=True)
class Reserve:
    """Memory that holds neither weights nor cache, in bytes: an estimate."""

    context: int
    """Captured graphs unless the engine is eager, NCCL, buffers of kernels."""
    activations: int
    """One step of `max_num_batched_tokens` through the widest layer, with the drafter's input, in BF16."""
    logits: int
    """Logits of every verified position in FP32, twice, and of every sequence sorted."""

    @property
    def total(self) -> int:
        """The sum."""
        return self.context + self.activations + self.logits


@dataclass(frozen=True)
class MemoryFit(Documented):
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
    sequences: Hidden[float]
    """Sequences of the full length that fit."""
    conversations: Hidden[float]
    """Sequences of at most LEAST_CONTEXT tokens that fit: as many can be decoded at the same time."""
    needed: Hidden[int]
    """Sequences of the full length that must fit: an engine that takes the whole cache at its start needs all."""
    longest: Hidden[int]
    """Tokens of the longest context, up to that of the sizes, in which they fit; 0 if there is none."""
    sequence: Hidden[int]
    """Cache of one sequence of the full length."""
    system_bytes: Count | None
    """Bytes that remain for the system if the GPU uses the same memory; `null` if it does not."""

    @property
    @shown
    def full_sequences(self) -> Ratio:
        """Sequences of the full length (MAX_MODEL_LEN) that fit into the cache."""
        return round(self.sequences, 2)

    @property
    @shown
    def short_sequences(self) -> Ratio:
        """Short sequences that fit into the cache: as many can be decoded at the same time."""
        return round(self.conversations, 2)

    @property
    @shown
    def fits(self) -> bool:
        """Whether one sequence of the full length fits; the engine does not start otherwise."""
        return self.sequences >= self.needed


def fit(pair: ModelPair, sizing: Sizing) -> MemoryFit:
    """Divide one GPU's memory between weights, reserve and cache."""
    drafting = sizing.draft_tokens > 0 and not sizing.uses_mtp_head
    reserved = reserve(pair, sizing).total
    within, outside = (reserved, 0) if sizing.reserve_within else (0, reserved)
    share = sizing.utilization
    if sizing.kept:
        # a share is written in hundredths, and is not 0
        share = min(share, max(math.floor(100 * (sizing.memory - sizing.kept - outside) / sizing.memory), 1) / 100)
    budget = int(_shared(sizing) * share)
    target = pair.target.bytes // sizing.gpus
    drafter = pair.drafter.bytes // sizing.gpus if drafting else 0
    left = budget - target - drafter - within
    # weights take precedence on a processor too, whatever size its cache has
    cache = left if sizing.cache_bytes is None else min(sizing.cache_bytes, left)
    # where pools are divided, pages are not made equal
    kinds = kinds_of(pair, replace(sizing, whole_contexts=True) if pools(pair, sizing) else sizing)
    needed = sizing.max_num_seqs if sizing.whole_contexts else 1
    sequences, sequence = full_sequences(pair, sizing, max(cache, 0)), sequence_bytes(pair, sizing)
    # an engine without a pool takes what its sequences need, not all of its share
    taken = target + drafter + reserved + needed * sequence if sizing.whole_contexts else budget + outside
    return MemoryFit(
        budget_bytes=budget,
        target_bytes=target,
        drafter_bytes=drafter,
        reserve_bytes=reserved,
        cache_bytes=max(cache, 0),
        kv_bytes_per_token=sum(kind.layers * kind.page // kind.tokens for kind in kinds if kind.tokens),
        state_bytes_per_sequence=sum(kind.layers * kind.page * kind.blocks for kind in kinds if not kind.tokens),
        cache_tokens=_tokens(pair, sizing, max(cache, 0), sequences),
        sequences=sequences,
        conversations=_sequences(pair, sizing, min(LEAST_CONTEXT, sizing.max_model_len), max(cache, 0)),
        needed=needed,
        longest=sizing.max_model_len if sequences >= needed else _longest(pair, sizing, max(cache, 0), needed),
        sequence=sequence,
        system_bytes=sizing.memory - taken if sizing.unified else None,
    )


def _sequences(pair: ModelPair, sizing: Sizing, length: int, cache: int) -> float:
    return full_sequences(pair, replace(sizing, max_model_len=length), cache)


def _shared(sizing: Sizing) -> int:
    """Bytes that the share is one of: all memory, or with SGLang what is free when it starts."""
    if sizing.reserve_within or sizing.whole_contexts:
        return sizing.memory
    return max(sizing.memory - (IDLE if sizing.unified else CONTEXT), 1)


def _tokens(pair: ModelPair, sizing: Sizing, cache: int, sequences: float) -> int:
    """Tokens of all sequences together. A part of a sequence holds none if its recurrent states do not fit."""
    if divided := pools(pair, sizing):
        (share, growing), _ = divided
        return int(share * cache / growing * sizing.max_model_len)
    if pair.shape.linear_attention is None:
        return int(sequences * sizing.max_model_len)
    whole = int(sequences)
    rest = cache - whole * sequence_bytes(pair, sizing)
    return whole * sizing.max_model_len + _longest(pair, sizing, rest, 1)


def _longest(pair: ModelPair, sizing: Sizing, cache: int, needed: int) -> int:
    """The longest context in steps of STEP tokens; that of the sizes is known not to fit."""
    low, high = 0, -(-sizing.max_model_len // STEP) if cache else 1
    while high - low > 1:
        middle = (low + high) // 2
        fits = _sequences(pair, sizing, middle * STEP, cache) >= needed
        low, high = (middle, high) if fits else (low, middle)
    return low * STEP


def reserve(pair: ModelPair, sizing: Sizing) -> Reserve:
    """The estimate for one GPU."""
    shape = pair.shape
    verified = sizing.max_num_seqs * positions(sizing.draft_tokens)
    tokens = min(sizing.max_num_batched_tokens, sizing.most_at_once or sizing.max_num_batched_tokens)
    held = IN_LAYER / sizing.gpus + IN_MODEL + (shape.experts[1] if shape.experts else 0)
    if sizing.uses_mtp_head:
        held += COPIES_FOR_MTP
    elif sizing.draft_tokens:
        held += COPIES_FOR_DRAFTER * (len(pair.drafter.target_layer_ids) or USUAL_TARGET_LAYERS)
    return Reserve(
        context=CONTEXT + (0 if sizing.eager else max(GRAPHS, min(2 * verified, MOST_CAPTURED) * GRAPHS_OF_POSITION)),
        activations=int(tokens * shape.hidden_size * 2 * held),
        logits=(2 * verified + sizing.max_num_seqs) * shape.vocabulary * 4 // sizing.gpus,
    )


SHORT_CONTEXT = 8192  # tokens of context if many short requests are the goal, and of each sequence beside a long one

# The smallest share that a user of a DGX Spark publishes (hasso5703/dgx-spark-qwen38@719c17b, docs/gb10-memory.md).
#
# A smaller one gains nothing on a machine for one engine, and the estimate of activations may be too low for it.
LEAST_SHARE = 0.5


def unified_share(pair: ModelPair, sizing: Sizing) -> tuple[float, str]:
    """The share of the memory for these sizes, in hundredths, and the reason with the GiB that the system keeps.

    `sizing.utilization` is the profile's upper value, `sizing.kept` the bytes that the system needs. The cache has room
    for all sequences at their full length, and so for prefixes of earlier requests.
    """
    whole = fit(pair, sizing)
    cache = sizing.max_num_seqs * whole.sequence
    weights = whole.target_bytes + whole.drafter_bytes
    needed = weights + cache + (whole.reserve_bytes if sizing.reserve_within else 0)
    shared = _shared(sizing)
    wanted, most = math.ceil(100 * needed / shared) / 100, round(whole.budget_bytes / shared, 2)
    # a share is not 0, whatever a tiny machine leaves
    share = max(min(max(wanted, LEAST_SHARE), most), 0.01)
    system = (sizing.memory - shared * share - (0 if sizing.reserve_within else whole.reserve_bytes)) / GIB
    remain = f"{system:.1f} of {sizing.memory / GIB:.1f} GiB remain for the system"
    if wanted > most and most < sizing.utilization:
        return share, f"{remain}; more for the engine would take the {sizing.kept / GIB:.0f} GiB that it needs"
    if wanted > most:
        return share, f"{remain}; the engine gets the profile's share"
    least = "the least that others run, with" if wanted < LEAST_SHARE else "the engine has"
    return share, f"{remain}; {least} room for {sizing.max_num_seqs} sequences of {sizing.max_model_len} tokens"
