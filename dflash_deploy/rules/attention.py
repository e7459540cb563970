"""Rules about attention: backends of target and drafter, and the type of the KV cache that they read."""

from __future__ import annotations

from dflash_deploy.catalog.releases import Backend
from dflash_deploy.host.machine import HostFacts
from dflash_deploy.plan.compatible import KV_FP8, KV_OF_16_BITS, backends_on, reads_fp8, reads_kv, refused_traits
from dflash_deploy.plan.result import Finding, Plan
from dflash_deploy.rules.kinds import CHOOSE_ANOTHER, Rule, backend
from dflash_deploy.serve.settings import Settings

_LATENT = "_mla"  # end of the types that only backends of sparse latent attention read; those are not in the catalog


def kv_dtype_unknown(plan: Plan, facts: HostFacts) -> Finding | None:
    """A type of the KV cache that this release does not have."""
    of_target = plan.engine.kv_dtypes
    of_drafter = plan.engine.drafter_kv_dtypes or of_target
    for field, known in ((Settings.kv_cache_dtype, of_target), (Settings.dflash_kv_cache_dtype, of_drafter)):
        wanted = plan.settings[field]
        if wanted and known and wanted.lower() not in known:
            return Finding(
                id="kv-dtype-unknown",
                severity="error",
                message=f"{field}={wanted} is not a type of KV cache in {plan.engine.title}",
                why="the engine refuses the argument",
                fix=f"choose one of {', '.join(known)}",
                source=f"the argument parser of {plan.engine.title}",
            )
    return None


def backend_not_here(plan: Plan, facts: HostFacts) -> Finding | None:
    """A backend that this release does not have on this GPU."""
    for field in (Settings.attention_backend, Settings.dflash_attention_backend):
        wanted = plan.settings[field]
        if wanted and plan.engine.attention and backend(plan, wanted) is None:
            known = ", ".join(dict.fromkeys(b.name for b in plan.engine.attention if backend(plan, b.name)))
            return Finding(
                id="backend-not-here",
                severity="error",
                message=f"{field}={wanted} is not known to run on {plan.profile.title} with {plan.engine.title}",
                why="the engine ends with `not valid for this configuration`, or with an assertion at the first draft",
                fix=f"choose one of {known}, or leave it empty",
                source="catalog/engines",
            )
    return None


def backend_refuses_target(plan: Plan, facts: HostFacts) -> Finding | None:
    """A backend that cannot compute the target's attention on this GPU."""
    chosen = backend(plan, plan.settings.attention_backend)
    if chosen is None or not (refused := refused_traits(chosen, plan.pair)):
        return None
    usable = [one.name for one in backends_on(plan.profile, plan.engine) if not refused_traits(one, plan.pair)]
    return Finding(
        id="backend-refuses-target",
        severity="error",
        message=f"{Settings.attention_backend}={chosen.name} cannot compute the attention of {plan.pair.family.title} "
        f"on {plan.profile.title}: {', '.join(refused)}",
        why="the engine ends with `Selected backend ... is not valid for this configuration`",
        fix=f"choose one of {', '.join(usable)}",
        source=chosen.source,
    )


def drafter_backend_is_causal(plan: Plan, facts: HostFacts) -> Finding | None:
    """A drafter backend with only causal attention; DFlash drafts all positions of a block at the same time."""
    chosen = _drafter_backend(plan)
    if not plan.drafting or chosen is None or chosen.drafts:
        return None
    known = (backend(plan, one.name) for one in plan.engine.attention)
    usable = dict.fromkeys(one.name for one in known if one is not None and one.drafts)
    return Finding(
        id="drafter-backend-is-causal",
        severity="error",
        message=f"{Settings.dflash_attention_backend}={chosen.name} cannot attend non-causally on {plan.profile.title}",
        why="a drafter proposes a whole block at a time, and each position attends to the later ones",
        fix=f"choose one of {', '.join(usable)}",
        source=chosen.source,
    )


def _drafter_backend(plan: Plan) -> Backend | None:
    """The drafter's backend if it is named: the drafter does not take over the target's, the engine picks one."""
    return backend(plan, plan.settings.dflash_attention_backend)


def fp8_kv_refused(plan: Plan, facts: HostFacts) -> Finding | None:
    """An FP8 cache that a backend of target or drafter does not read in this release on this GPU."""
    wanted = plan.settings.kv_cache_dtype.lower()
    if wanted not in KV_FP8 or not plan.engine.kind.knows(Settings.attention_backend):
        return None
    reader, field = _no_reader_of_fp8(plan), Settings.kv_cache_dtype
    if reader is None:
        return None
    return Finding(
        id="fp8-kv-refused",
        severity="error",
        message=f"{field}={wanted}, but {reader.name} does not read it on {plan.profile.title}",
        why="the engine ends with `kv_cache_dtype not supported`, or computes wrong numbers",
        fix=f"set {field}=auto, or a backend that reads it for target and drafter",
        source=reader.source,
    )


def _no_reader_of_fp8(plan: Plan) -> Backend | None:
    """The named backend of target or drafter that does not read an FP8 cache; `None` if there is none."""
    of_target = backend(plan, plan.settings.attention_backend)
    if of_target is not None and not reads_fp8(of_target, plan.pair):
        return of_target
    if not plan.drafting or plan.settings.dflash_kv_cache_dtype.lower() in {"auto", "bfloat16", "bf16"}:
        return None
    of_drafter = _drafter_backend(plan)
    reads = of_drafter is None or reads_fp8(of_drafter, plan.pair, drafting=True)
    return None if reads else of_drafter


def kv_dtype_refused(plan: Plan, facts: HostFacts) -> Finding | None:
    """Another type of KV cache that no backend of target or drafter reads here, or not the one that is named."""
    if not any(reader.other_kv or reader.causal_kv for reader in plan.engine.attention):
        return None
    here = backends_on(plan.profile, plan.engine)
    of_target, of_drafter = plan.settings.kv_cache_dtype.lower(), plan.settings.dflash_kv_cache_dtype.lower()
    users = [("target", of_target, plan.settings.attention_backend)]
    if plan.drafting:
        # without a type of its own the drafter has the target's
        users.append(("drafter", of_drafter or of_target, plan.settings.dflash_attention_backend))
    for who, wanted, named in users:
        if wanted in KV_OF_16_BITS | KV_FP8 or wanted not in plan.engine.kv_dtypes or wanted.endswith(_LATENT):
            continue
        readers = [known.name for known in here if reads_kv(known, plan.pair, wanted, drafting=who == "drafter")]
        if readers and (not named or named.upper() in readers):
            continue
        which = f"{named} of the {who} does not read it" if readers else f"no backend of the {who} reads it"
        return Finding(
            id="kv-dtype-refused",
            severity="error",
            message=f"a KV cache of type {wanted}, but {which} on {plan.profile.title}",
            why="the engine ends with `not valid for this configuration`, or with the first draft",
            fix=f"set {Settings.kv_cache_dtype}=auto"
            if who == "target"
            else f"set {Settings.dflash_kv_cache_dtype}=auto for the drafter, or {Settings.kv_cache_dtype}=auto",
            source="supported_kv_cache_dtypes and supports_non_causal in v1/attention/backends of vLLM 0.33.0; "
            "vllm-project/vllm#43562",
        )
    return None


def fp8_kv_without_backend(plan: Plan, facts: HostFacts) -> Finding | None:
    """An FP8 cache without named backends: the engine may pick one that refuses it."""
    wanted = plan.settings.kv_cache_dtype.lower()
    if not plan.drafting or not wanted.startswith("fp8") or not plan.engine.kind.drafter_chooses_backend:
        return None
    if plan.settings.attention_backend and plan.settings.dflash_attention_backend:
        return None
    field, both = Settings.kv_cache_dtype, f"{Settings.attention_backend} and {Settings.dflash_attention_backend}"
    return Finding(
        id="fp8-kv-without-backend",
        severity="warning",
        message=f"{field}={wanted} without both {both}",
        why="the drafter does not take over the target's backend, and may pick one that does not read FP8",
        fix=f"set both backends, or {field}=auto",
        source="vllm-project/vllm#41559",
    )


def fp8_kv_forced(plan: Plan, facts: HostFacts) -> Finding | None:
    """A ModelOpt checkpoint that requires an FP8 cache, whatever KV_CACHE_DTYPE says."""
    if not plan.pair.target.forced_fp8_kv or not plan.engine.kind.fp8_kv_from_checkpoint:
        return None
    reader = _no_reader_of_fp8(plan)
    if reader is None:
        return None
    return Finding(
        id="fp8-kv-forced",
        severity="error",
        message=f"{plan.pair.target.repo} requires an FP8 cache, which {reader.name} does not read on "
        f"{plan.profile.title}",
        why="on B200 the engine ends with `fp8 tensor core is not supported in fa2 backend`",
        fix=CHOOSE_ANOTHER,
        source="vllm-project/vllm#49293, open",
    )


RULES: tuple[Rule, ...] = (
    kv_dtype_unknown,
    backend_not_here,
    backend_refuses_target,
    drafter_backend_is_causal,
    fp8_kv_refused,
    kv_dtype_refused,
    fp8_kv_without_backend,
    fp8_kv_forced,
)
