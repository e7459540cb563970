"""Rules about several GPUs and several machines."""

from __future__ import annotations

from dflash_deploy.host.machine import HostFacts
from dflash_deploy.plan.model_metadata import metadata_of
from dflash_deploy.plan.result import Finding, Plan
from dflash_deploy.rules.kinds import Rule, reads_checkpoints
from dflash_deploy.serve.settings import Settings

ATTENTION, OF_DRAFTER, RECURRENT = "attention heads", "KV heads of the drafter", "key heads of the recurrent layers"


@reads_checkpoints
def heads_do_not_divide(plan: Plan, facts: HostFacts) -> Finding | None:
    """Attention heads, recurrent key heads or weights that cannot be divided among the GPUs."""
    gpus, most = plan.settings.tensor_parallel_size or 1, plan.pair.target.most_gpus
    shared = _sharing_a_layer(plan)
    if most is not None and shared > most:
        return Finding(
            id="heads-do-not-divide",
            severity="error",
            message=f"{_product(plan)}={shared} exceeds the {most} GPUs that can share a layer of "
            f"{plan.pair.target.repo}",
            why="a share of its quantized weights would not be a multiple of their blocks",
            fix=f"set {Settings.tensor_parallel_size}={most}; more GPUs run more copies: {Settings.data_parallel_size}",
            source="catalog/families",
        )
    attention, drafter = plan.pair.shape.full_attention, plan.pair.drafter
    keys = _key_heads(plan)
    counts = {ATTENTION: attention.heads} if attention is not None else {}
    if plan.drafting:
        counts[OF_DRAFTER] = drafter.kv_heads
    if keys is not None:
        counts[RECURRENT] = keys
    for what, count in counts.items():
        # engines repeat attention heads if there are fewer than GPUs, and never those of recurrent layers
        repeated = what != RECURRENT and gpus % count == 0
        if count % gpus and not repeated:
            return Finding(
                id="heads-do-not-divide",
                severity="error",
                message=f"{Settings.tensor_parallel_size}={gpus} does not divide {count} {what}",
                why="every GPU gets the same number of whole heads",
                fix="choose a number that divides it",
                source="vLLM config/parallel.py",
            )
    return None


def _sharing_a_layer(plan: Plan) -> int:
    """The GPUs that share the weights of a layer. vLLM divides experts over all copies too (config/parallel.py)."""
    settings = plan.settings
    experts = plan.pair.shape.experts is not None and plan.engine.kind.shares_experts
    over_copies = experts and "--enable-expert-parallel" not in settings.extra_args
    return (settings.tensor_parallel_size or 1) * (settings.data_parallel_size if over_copies else 1)


def _key_heads(plan: Plan) -> int | None:
    """The key heads of the target's recurrent layers, by its own files if they are on disk; `None` without such layers.

    vLLM (qwen_gdn_linear_attn.py) computes with `num_k_heads // tp_size`: with 0 the first request ends the engine.
    """
    linear = plan.pair.shape.linear_attention
    return metadata_of(plan.checkpoints.target).key_heads or (linear.key_heads if linear else None)


def more_gpus_than_there_are(plan: Plan, facts: HostFacts) -> Finding | None:
    """A target that is split over more GPUs than the machines have."""
    # copies on processors share them
    copies = 1 if plan.engine.cpu else plan.settings.data_parallel_size
    wanted = (plan.settings.tensor_parallel_size or 1) * copies
    of_one = max(plan.profile.match.gpus, len(facts.gpus), 1)
    available = max(plan.profile.gpus, of_one * plan.settings.nodes)
    if wanted <= available:
        return None
    fewer = max(1, available // (plan.settings.tensor_parallel_size or 1))
    fix = f"set {Settings.data_parallel_size}={fewer}, or a smaller {Settings.tensor_parallel_size}"
    return Finding(
        id="more-gpus-than-there-are",
        severity="error",
        message=f"{_product(plan)}={wanted} exceeds the number of GPUs ({available})",
        why="the engine refuses to start",
        fix=fix if copies > 1 else f"set {Settings.tensor_parallel_size}={available}",
    )


def _product(plan: Plan) -> str:
    """The settings that say how many GPUs the engine uses."""
    copies = f" x {Settings.data_parallel_size}" if plan.settings.data_parallel_size > 1 else ""
    return f"{Settings.tensor_parallel_size}{copies}"


def pipeline_with_drafter(plan: Plan, facts: HostFacts) -> Finding | None:
    """Pipeline parallelism with a drafter, which reads layers of all stages."""
    words = plan.settings.extra_args
    flags = {"-pp", "--pipeline-parallel-size", "--pp-size"}
    hit = next((word for word in words if word.split("=", 1)[0].replace("_", "-") in flags), None)
    if not plan.drafting or hit is None:
        return None
    return Finding(
        id="pipeline-with-drafter",
        severity="error",
        message=f"{Settings.extra_args} holds {hit}, but the drafter reads layers of every stage",
        why="the engine refuses to start",
        fix=f"split with {Settings.tensor_parallel_size}, or set {Settings.dflash_drafter}=off",
        source="vLLM eagle3_utils.py: does not support dflash with pipeline parallelism; SGLang: pp_size == 1",
    )


def master_address_missing(plan: Plan, facts: HostFacts) -> Finding | None:
    """Several machines without the address of rank 0."""
    settings = plan.settings
    if not settings.several_machines or settings.master_addr:
        return None
    return Finding(
        id="master-address-missing",
        severity="error",
        message=f"{Settings.nodes}={settings.nodes} machines serve together, but {Settings.master_addr} is empty",
        why="ranks above 0 do not know which machine to join",
        fix=f"set {Settings.master_addr} to the address of rank 0 on the link between them (`init --master-addr`)",
        source="vLLM 0.33 --master-addr",
    )


def copies_on_several_machines(plan: Plan, facts: HostFacts) -> Finding | None:
    """Data-parallel copies on each of several machines that serve one model together."""
    settings = plan.settings
    if settings.data_parallel_size == 1 or not settings.several_machines:
        return None
    return Finding(
        id="copies-on-several-machines",
        severity="error",
        message=f"{Settings.data_parallel_size}={settings.data_parallel_size} with {Settings.nodes}={settings.nodes}",
        why="each machine has a part of the model, and no copy of it",
        fix=f"set {Settings.data_parallel_size}=1, or {Settings.nodes}=1 on each machine",
    )


def sleeps_among_several(plan: Plan, facts: HostFacts) -> Finding | None:
    """An engine that ends when it is idle, while other machines wait for it."""
    settings = plan.settings
    if settings.idle_minutes is None or not settings.several_machines:
        return None
    return Finding(
        id="sleeps-among-several",
        severity="error",
        message=f"{Settings.idle_minutes} does not work with {Settings.nodes}={settings.nodes}",
        why="the others would take an engine that sleeps for one that has failed",
        fix=f"empty {Settings.idle_minutes}, or serve with one engine on one machine",
    )


RULES: tuple[Rule, ...] = (
    heads_do_not_divide,
    more_gpus_than_there_are,
    pipeline_with_drafter,
    master_address_missing,
    copies_on_several_machines,
    sleeps_among_several,
)
