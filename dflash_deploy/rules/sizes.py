"""Rules about sizes: draft tokens, max_num_batched_tokens, memory, context."""

from __future__ import annotations

from dflash_deploy.host.machine import HostFacts
from dflash_deploy.plan.memory import GIB, LEAST_CONTEXT
from dflash_deploy.plan.model_metadata import metadata_of
from dflash_deploy.plan.result import Finding, Plan
from dflash_deploy.plan.sizes import OF_MEMORY
from dflash_deploy.rules.kinds import Rule, reads_checkpoints
from dflash_deploy.serve.settings import Settings
from dflash_deploy.serve.speculation import PROMPT_TOKENS

HANGS_UNIFIED = 65536  # max_num_batched_tokens of the first published recipe for a DGX Spark
RAN_UNIFIED = 0.90  # share of unified memory that its author ran
RAN_UNIFIED_BY = "EmanueleMeazzo/qwen3.8-27b-dgx-spark-vllm"
SAFE_UNIFIED = 32768


@reads_checkpoints
def draft_tokens_exceed_block(plan: Plan, facts: HostFacts) -> Finding | None:
    """More draft tokens than the drafter's block holds: llama.cpp uses fewer, SGLang warns, vLLM does not check it."""
    draft_tokens, drafter = plan.settings.dflash_num_spec_tokens, plan.pair.drafter
    block = metadata_of(plan.checkpoints.drafter).block_size
    if block is not None and block > 1:
        # the drafter on disk overrides the catalog's
        drafter = drafter.model_copy(update={"block_size": block})
    most = drafter.most_draft_tokens
    if not plan.drafting or draft_tokens is None or draft_tokens <= most:
        return None
    field = Settings.dflash_num_spec_tokens
    return Finding(
        id="draft-tokens-exceed-block",
        severity="warning",
        message=f"{field}={draft_tokens}, but the drafter's block of {drafter.block_size} holds {most}",
        why="the drafter was not trained on positions beyond its block: on most text few of them are accepted",
        fix=f"set {field}={most} or less",
        source="drafter config.json block_size, whose first position is the last accepted token; SGLang 0.5.23 "
        "dflash_worker_v2.py warns; discussion of z-lab's card: the 16th draft token is accepted at 10 %; "
        "cqingwang/qwen-dflash2-spark: edits accept 15.9 of 16 with a block of 8",
    )


def budget_too_small(plan: Plan, facts: HostFacts) -> Finding | None:
    """Fewer tokens in a step than draft positions: releases before 0.33 then write out of bounds."""
    tokens, needed = plan.settings.max_num_batched_tokens, _draft_positions(plan)
    if not plan.engine.kind.speculation_budget or tokens is None or needed is None or tokens >= needed:
        return None
    clamped = "clamps-draft-slots" in plan.engine.abilities
    field, sequences = Settings.max_num_batched_tokens, Settings.max_num_seqs
    return Finding(
        id="budget-too-small",
        severity="warning" if clamped else "error",
        message=f"{field}={tokens} is below the {needed} draft positions of {sequences} sequences",
        why="the engine runs fewer sequences than asked for" if clamped else "the drafter writes out of bounds",
        fix=f"set {field} to {needed} or more, or lower {sequences}",
        source="vllm-project/vllm#53970, #51655",
    )


def budget_leaves_little(plan: Plan, facts: HostFacts) -> Finding | None:
    """Few tokens of a step remain for prompts beside the drafts."""
    tokens, taken = plan.settings.max_num_batched_tokens, _draft_positions(plan)
    if not plan.engine.kind.speculation_budget or plan.engine.cpu or tokens is None or taken is None:
        return None
    # from 0.33 on vLLM compares the whole step, before that what the drafts leave of it
    least = PROMPT_TOKENS if "clamps-draft-slots" in plan.engine.abilities else taken + PROMPT_TOKENS
    if not taken <= tokens < least:
        return None
    field = Settings.max_num_batched_tokens
    if any(made.name == field.name and made.origin == OF_MEMORY for made in plan.decisions):
        # more do not fit
        return None
    return Finding(
        id="budget-leaves-little",
        severity="warning",
        message=f"{field}={tokens} leaves {tokens - taken} tokens of a step for prompts beside the drafts",
        why="the engine reads long prompts in small chunks, and every request waits longer for its first token",
        fix=f"set {field}={least} or more, if the memory allows it",
        source=f"vLLM config/vllm.py _set_max_num_scheduled_tokens, which warns below {PROMPT_TOKENS}",
    )


def _draft_positions(plan: Plan) -> int | None:
    """Positions of a step that all sequences' drafts take; `None` without drafts or with sizes left to the engine."""
    settings = plan.settings
    if not plan.speculating or settings.max_num_seqs is None or settings.dflash_num_spec_tokens is None:
        return None
    return settings.max_num_seqs * settings.positions_per_step


def budget_hangs_unified_memory(plan: Plan, facts: HostFacts) -> Finding | None:
    """The max_num_batched_tokens that hung a machine with unified memory."""
    tokens, field = plan.settings.max_num_batched_tokens, Settings.max_num_batched_tokens
    if not plan.profile.hardware.unified or tokens is None or tokens < HANGS_UNIFIED:
        return None
    return Finding(
        id="budget-hangs-unified-memory",
        severity="error",
        message=f"{field}={tokens} on {plan.profile.title}",
        why="activations of this many tokens use the memory of the system: the machine hangs",
        fix=f"set {field}={SAFE_UNIFIED}",
        source="AEON-7/vllm-dflash#1",
    )


def memory_overcommitted(plan: Plan, facts: HostFacts) -> Finding | None:
    """A larger share of memory than the hardware can give; unified memory includes what the system needs."""
    hardware, field = plan.profile.hardware, Settings.gpu_memory_utilization
    share, most, unified = plan.settings.gpu_memory_utilization, hardware.most_utilisation, hardware.unified
    asked = f"{field}={share}"
    if share is None and unified and plan.engine.kind.utilization is not None:
        # stock vLLM's default
        share = plan.engine.kind.utilization
        asked = f"{field} is empty, and the engine's own share of {share}"
    if share is None or share <= most:
        return _system_keeps_little(plan) if unified else None
    ran = plan.settings.gpu_memory_utilization is not None and share <= RAN_UNIFIED
    return Finding(
        id="memory-overcommitted",
        severity="error" if unified and not ran else "warning",
        message=f"{asked} is above the {most} that {plan.profile.title} can give",
        why="the system shares this memory, and the machine thrashes"
        if unified
        else "graphs and libraries need memory that this share does not include",
        fix=f"set {field}={most} or less",
        source="AEON-7/Qwen3.6-27B AGENTS.md: never above 0.88 on a DGX Spark"
        + (f"; {RAN_UNIFIED_BY}: {RAN_UNIFIED} with 16 requests at once, no error" if ran else "")
        if unified
        else "",
    )


def _system_keeps_little(plan: Plan) -> Finding | None:
    """A share of unified memory that leaves the system less than its part."""
    field, kept = Settings.gpu_memory_utilization, plan.profile.hardware.system_gib
    left = None if plan.memory is None else plan.memory.system_bytes
    if left is None or plan.settings.gpu_memory_utilization is None or left >= kept * GIB:
        return None
    return Finding(
        id="memory-overcommitted",
        severity="warning",
        message=f"{field}={plan.settings.gpu_memory_utilization} leaves {left / GIB:.1f} GiB for the system, "
        f"which needs {kept:g}",
        why="engines take memory besides their share, and the whole machine freezes at the end of it",
        fix=f"remove {field} from .env, and the plan chooses it",
        source="hasso5703/dgx-spark-qwen38@719c17b docs/gb10-memory.md: 15 of 48 configurations ended at 0.85; "
        "vllm-project/vllm#46307: 112 GiB in use during a start with a share of 83",
    )


def weights_do_not_fit(plan: Plan, facts: HostFacts) -> Finding | None:
    """Weights, activations and graphs leave no cache, or one that holds not even a short sequence."""
    fit = plan.memory
    if fit is None or fit.conversations >= 1:
        return None
    counted, needed = "weights", fit.target_bytes + fit.drafter_bytes
    if plan.engine.kind.utilization_covers_activations:
        counted, needed = "weights, activations and graphs", needed + fit.reserve_bytes
    budget, of = fit.budget_bytes / GIB, "of memory" if plan.engine.cpu else "of each GPU"
    return Finding(
        id="weights-do-not-fit",
        severity="error",
        message=f"{plan.pair.name}: {counted} take {needed / GIB:.1f} of {budget:.1f} GiB "
        f"{of}, and the rest is too small for one sequence of {LEAST_CONTEXT} tokens",
        why="the engine would download, load and end with an out-of-memory error",
        fix="choose a smaller quantization of the model: `dflash-deploy models list` shows which fit",
        source="sizes of the weights; plan/memory.py",
    )


def sequence_does_not_fit(plan: Plan, facts: HostFacts) -> Finding | None:
    """A cache too small for a sequence of the full length, or for all where the engine takes it at its start."""
    fit = plan.memory
    if fit is None or fit.conversations < 1 or fit.fits:
        return None
    length, draft_tokens = Settings.max_model_len, Settings.dflash_num_spec_tokens
    of = f"each of {fit.needed} sequences" if fit.needed > 1 else "one sequence"
    message = f"the cache holds about {fit.longest} tokens of {of}, and {length} asks for more"
    kept, lacking = int(plan.profile.hardware.system_gib * GIB), fit.needed * fit.sequence - fit.cache_bytes
    # with a larger share it may fit, but not in the part of the system
    refused = fit.system_bytes is not None and fit.system_bytes - lacking < kept
    if refused:
        message += f": it needs {lacking / GIB:.1f} GiB more, and the system keeps {kept / GIB:.0f} GiB"
    fewer = f", {Settings.max_num_seqs}" if fit.needed > 1 else ""
    return Finding(
        id="sequence-does-not-fit",
        severity="error" if refused else "warning",
        message=message,
        why="an engine refuses to start if its sequences of the full length do not fit; on unified memory a larger "
        "share takes what the system needs",
        fix=f"lower {length}{fewer} or {draft_tokens}{_smaller_cache(plan)}",
        source="an estimate, plan/memory.py",
    )


def _smaller_cache(plan: Plan) -> str:
    """A smaller type of KV cache that this engine may read."""
    kind, kept = plan.engine.kind, plan.settings.kv_cache_dtype
    smaller = [name for name in kind.smaller_caches if name != kept and kept not in kind.smaller_caches[-1:]]
    if smaller:
        return f", or set {Settings.kv_cache_dtype}={' or '.join(smaller)}"
    return ", or use an FP8 cache if the hardware reads it" if kind.knows(Settings.attention_backend) else ""


def streams_wait_for_memory(plan: Plan, facts: HostFacts) -> Finding | None:
    """More sequences than the cache holds: a hybrid target keeps a state for every draft position of each."""
    fit, sequences = plan.memory, plan.settings.max_num_seqs
    if fit is None or sequences is None or fit.conversations < 1 or fit.conversations >= sequences:
        return None
    field, room = Settings.max_num_seqs, int(fit.conversations)
    return Finding(
        id="streams-wait-for-memory",
        severity="warning",
        message=f"{field}={sequences}, and the cache holds about {room} short sequences at the same time",
        why="the other sequences wait, or lose their cache and are computed again",
        fix=f"lower {field}, or {Settings.dflash_num_spec_tokens} so that each sequence holds fewer states",
        source="an estimate, plan/memory.py",
    )


def drafter_slows_down(plan: Plan, facts: HostFacts) -> Finding | None:
    """The speed model expects no gain for a mix of chat and code."""
    for speed in plan.speed:
        if speed.of("dflash") and speed.expected("dflash") < speed.plain_expected:
            return Finding(
                id="drafter-slows-down",
                severity="note",
                message=f"at concurrency {speed.concurrency} the drafter is not expected to gain speed "
                "for a mix of chat and code",
                why="verifying a block costs more time than the accepted tokens save",
                fix="measure your own workload, with fewer draft tokens, and with --no-drafter",
                source="the speed model, plan/speed.py",
            )
    return None


def context_beyond_target(plan: Plan, facts: HostFacts) -> Finding | None:
    """A context that is longer than the target's, without an argument that extends it, as YaRN does."""
    length, longest = plan.settings.max_model_len, plan.pair.shape.context
    if length is None or length <= longest or "rope" in " ".join(plan.settings.extra_args):
        return None
    return Finding(
        id="context-beyond-target",
        severity="error",
        message=f"{Settings.max_model_len}={length}, but {plan.pair.family.title} was made for {longest} tokens",
        why="vLLM refuses to start, other engines answer nonsense beyond it",
        fix=f"set {Settings.max_model_len}={longest} or less",
        source="max_position_embeddings of its config.json",
    )


def context_beyond_drafter(plan: Plan, facts: HostFacts) -> Finding | None:
    """A context that is longer than the drafter's training."""
    length, trained = plan.settings.max_model_len, plan.pair.drafter.trained_context
    if not plan.drafting or length is None or trained is None or length <= trained:
        return None
    return Finding(
        id="context-beyond-drafter",
        severity="note",
        message=f"the drafter was trained on up to {trained} tokens, {Settings.max_model_len} is {length}",
        why="acceptance falls with the length of the context; answers stay the same",
        fix="measure with your own long prompts",
        source="z-lab drafter card; z-lab/dflash#66, 200 tokens/s at 500 tokens of context and 24 at 64000",
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
