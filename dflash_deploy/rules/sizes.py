"""Rules about sizes: draft tokens, budget, memory, context."""

from __future__ import annotations

import math

from dflash_deploy.host import HostFacts
from dflash_deploy.plan.memory import GIB, SHORT
from dflash_deploy.plan.model_metadata import stated
from dflash_deploy.plan.result import Finding, Plan
from dflash_deploy.plan.sizes import PROMPT_TOKENS
from dflash_deploy.rules.kinds import Rule, reads_checkpoints
from dflash_deploy.serve.settings import Settings

HANGS_UNIFIED = 65536


@reads_checkpoints
def draft_tokens_exceed_block(plan: Plan, facts: HostFacts) -> Finding | None:
    """vLLM does not check this for dflash; positions beyond the block were never trained."""
    draft_tokens, block = plan.settings.dflash_num_spec_tokens, _block_size(plan)
    if not plan.drafting or draft_tokens is None or draft_tokens < block:
        return None
    return Finding(
        "draft-tokens-exceed-block",
        "error",
        f"DFLASH_NUM_SPEC_TOKENS={draft_tokens}, but the drafter's block of {block} holds {block - 1}",
        f"set DFLASH_NUM_SPEC_TOKENS={block - 1} or less",
        "drafter config.json block_size; the first position of a block is the last accepted token",
        why="no engine checks it, and positions that were never trained are drafted for nothing",
    )


def _block_size(plan: Plan) -> int:
    """The block of the drafter on disk where there is one, else of the catalog's."""
    block = stated(plan.checkpoints.drafter).block_size
    return block if block is not None and block > 1 else plan.pair.drafter.block_size


def budget_too_small(plan: Plan, facts: HostFacts) -> Finding | None:
    """Releases before 0.33 write out of bounds when the draft positions do not fit the budget."""
    budget, needed = plan.settings.max_num_batched_tokens, _draft_positions(plan)
    if not plan.engine.kind.speculation_budget or budget is None or needed is None or budget >= needed:
        return None
    clamped = "clamps-draft-slots" in plan.engine.abilities
    return Finding(
        "budget-too-small",
        "warning" if clamped else "error",
        f"MAX_NUM_BATCHED_TOKENS={budget} is below the {needed} draft positions of MAX_NUM_SEQS sequences",
        f"set MAX_NUM_BATCHED_TOKENS to {needed} or more, or lower MAX_NUM_SEQS",
        "vllm-project/vllm#53970, #51655",
        why="fewer sequences run than asked for" if clamped else "the drafter writes out of bounds",
    )


def budget_leaves_little(plan: Plan, facts: HostFacts) -> Finding | None:
    """What drafts leave of the budget is all that prompts get."""
    budget, taken = plan.settings.max_num_batched_tokens, _draft_positions(plan)
    if not plan.engine.kind.speculation_budget or plan.engine.cpu or budget is None or taken is None:
        return None
    if not taken <= budget < taken + PROMPT_TOKENS:
        return None
    return Finding(
        "budget-leaves-little",
        "warning",
        f"MAX_NUM_BATCHED_TOKENS={budget} leaves {budget - taken} tokens of a step to prompts beside the drafts",
        f"set MAX_NUM_BATCHED_TOKENS={taken + PROMPT_TOKENS} or more",
        "vLLM config/vllm.py _set_max_num_scheduled_tokens, which warns below 8192",
        why="long prompts are read in small pieces, and everybody waits longer for the first token",
    )


def _draft_positions(plan: Plan) -> int | None:
    """Positions of a step that all sequences' drafts take; `None` without drafts or with sizes left open."""
    settings = plan.settings
    if not plan.speculating or settings.max_num_seqs is None or settings.dflash_num_spec_tokens is None:
        return None
    return settings.max_num_seqs * settings.positions_per_step


def budget_hangs_unified_memory(plan: Plan, facts: HostFacts) -> Finding | None:
    """The value of the first published recipe."""
    budget = plan.settings.max_num_batched_tokens
    if not plan.profile.hardware.unified or budget is None or budget < HANGS_UNIFIED:
        return None
    return Finding(
        "budget-hangs-unified-memory",
        "error",
        f"MAX_NUM_BATCHED_TOKENS={budget} on {plan.profile.title}",
        "set MAX_NUM_BATCHED_TOKENS=32768",
        "AEON-7/vllm-dflash#1",
        why="activations of so many tokens take the memory that the system runs in: the machine hung",
    )


def memory_overcommitted(plan: Plan, facts: HostFacts) -> Finding | None:
    """On unified memory the share counts what the system needs too."""
    share, most = plan.settings.gpu_memory_utilization, plan.profile.hardware.most_utilisation
    if share is None or share <= most:
        return None
    unified = plan.profile.hardware.unified
    return Finding(
        "memory-overcommitted",
        "error" if unified else "warning",
        f"GPU_MEMORY_UTILIZATION={share} is above the {most} that {plan.profile.title} takes well",
        f"set GPU_MEMORY_UTILIZATION={most} or less",
        "AEON-7/Qwen3.6-27B AGENTS.md: never above 0.88 on a DGX Spark" if unified else "",
        why="the system shares this memory, and the machine thrashes"
        if unified
        else "graphs and libraries need memory that the share does not count",
    )


def weights_do_not_fit(plan: Plan, facts: HostFacts) -> Finding | None:
    """Weights and what goes with them leave nothing for a cache, or nothing worth it."""
    fit = plan.memory
    if fit is None or fit.short_sequences >= 1:
        return None
    held = (fit.target + fit.drafter + fit.reserve) / GIB
    of = "of memory" if plan.engine.cpu else "of each GPU"
    return Finding(
        "weights-do-not-fit",
        "error",
        f"{plan.pair.name} needs {held:.1f} GiB {of} before any cache, and {fit.budget / GIB:.1f} GiB are allowed: "
        f"no room is left for one sequence of {SHORT} tokens",
        "choose a smaller form of the model: `dflash-deploy models list` shows which fit",
        "sizes of the weights; plan/memory.py",
        why="the engine would download, load and end with an out-of-memory error",
    )


def sequence_does_not_fit(plan: Plan, facts: HostFacts) -> Finding | None:
    """Engines refuse to start where one sequence of the full length does not fit."""
    fit = plan.memory
    if fit is None or fit.short_sequences < 1 or fit.fits:
        return None
    return Finding(
        "sequence-does-not-fit",
        "warning",
        f"the cache has room for about {fit.tokens} tokens in one sequence, and MAX_MODEL_LEN asks for more",
        "lower MAX_MODEL_LEN or DFLASH_NUM_SPEC_TOKENS, or use FP8 for the cache where the hardware reads it",
        "an estimate, plan/memory.py",
        why="an engine refuses to start where a single sequence of the full length does not fit",
    )


def streams_wait_for_memory(plan: Plan, facts: HostFacts) -> Finding | None:
    """A hybrid target holds states for every draft position of every sequence, however short it is."""
    fit, streams = plan.memory, plan.settings.max_num_seqs
    if fit is None or streams is None or fit.short_sequences < 1 or fit.short_sequences >= streams:
        return None
    return Finding(
        "streams-wait-for-memory",
        "warning",
        f"MAX_NUM_SEQS={streams}, and the cache has room for about {int(fit.short_sequences)} short ones at once",
        "lower MAX_NUM_SEQS, or DFLASH_NUM_SPEC_TOKENS so that each holds fewer states",
        "an estimate, plan/memory.py",
        why="the others wait, or are thrown out and read again",
    )


def drafter_slows_down(plan: Plan, facts: HostFacts) -> Finding | None:
    """The speed model at a middling acceptance length."""
    for speed in plan.speed:
        if speed.dflash is None:
            continue
        plain, drafted = math.prod(speed.plain) ** 0.5, math.prod(speed.dflash) ** 0.5
        if drafted < plain:
            streams = "one stream" if speed.concurrency == 1 else f"{speed.concurrency} streams at the same time"
            return Finding(
                "drafter-slows-down",
                "note",
                f"with {streams} the drafter is expected to gain nothing at a middling acceptance length",
                "measure with your own work, with fewer draft tokens, and with --no-drafter",
                "the speed model, plan/speed.py",
                why="verifying a block costs more than the accepted tokens save",
            )
    return None


def context_beyond_target(plan: Plan, facts: HostFacts) -> Finding | None:
    """Longer than the target was made for."""
    length, longest = plan.settings.max_model_len, plan.pair.shape.context
    if length is None or length <= longest:
        return None
    return Finding(
        "context-beyond-target",
        "error",
        f"MAX_MODEL_LEN={length}, but {plan.pair.family.title} was made for {longest} tokens",
        f"set MAX_MODEL_LEN={longest} or less",
        "max_position_embeddings of its config.json",
        why="vLLM refuses to start, others answer nonsense beyond it",
    )


def context_beyond_drafter(plan: Plan, facts: HostFacts) -> Finding | None:
    """Drafters were trained on shorter texts than their targets."""
    length, trained = plan.settings.max_model_len, plan.pair.drafter.trained_context
    if not plan.drafting or length is None or trained is None or length <= trained:
        return None
    window = "set DFLASH_DRAFT_WINDOW, " if plan.engine.kind.knows(Settings.dflash_draft_window) else ""
    return Finding(
        "context-beyond-drafter",
        "note",
        f"the drafter was trained on up to {trained} tokens, MAX_MODEL_LEN is {length}",
        f"{window}measure with your own long prompts; answers stay right, only fewer drafts are accepted",
        "z-lab drafter card; z-lab/dflash#66, 200 tokens/s at 500 tokens of context and 24 at 64000",
        why="acceptance falls with the length of the context",
    )


RULES: tuple[Rule, ...] = (
    draft_tokens_exceed_block,
    budget_too_small,
    budget_leaves_little,
    budget_hangs_unified_memory,
    memory_overcommitted,
    weights_do_not_fit,
    sequence_does_not_fit,
    streams_wait_for_memory,
    drafter_slows_down,
    context_beyond_target,
    context_beyond_drafter,
)
