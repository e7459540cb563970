"""Rules about several GPUs and several machines."""

from __future__ import annotations

from dflash_deploy.host import HostFacts
from dflash_deploy.plan.result import Finding, Plan
from dflash_deploy.rules.kinds import Rule


def heads_do_not_divide(plan: Plan, facts: HostFacts) -> Finding | None:
    """Each GPU gets whole heads, of target and drafter."""
    gpus = plan.settings.tensor_parallel_size or 1
    attention, drafter = plan.pair.shape.full_attention, plan.pair.drafter
    counts = {"attention heads": attention.heads} if attention is not None else {}
    if plan.drafting:
        counts["KV heads of the drafter"] = drafter.kv_heads
    for what, count in counts.items():
        # fewer heads than GPUs are repeated
        if count % gpus and gpus % count:
            return Finding(
                "heads-do-not-divide",
                "error",
                f"TENSOR_PARALLEL_SIZE={gpus} does not share out {count} {what}",
                "choose a number that divides it",
                "vLLM config/parallel.py",
                why="every GPU gets the same number of whole heads",
            )
    return None


def more_gpus_than_there_are(plan: Plan, facts: HostFacts) -> Finding | None:
    """The target is split over GPUs that the machines have."""
    wanted, there = plan.settings.tensor_parallel_size or 1, max(plan.profile.gpus, len(facts.gpus), 1)
    if wanted <= there:
        return None
    return Finding(
        "more-gpus-than-there-are",
        "error",
        f"TENSOR_PARALLEL_SIZE={wanted}, and there {'is' if there == 1 else 'are'} {there}",
        f"set TENSOR_PARALLEL_SIZE={there}",
        why="the engine refuses to start",
    )


def pipeline_with_drafter(plan: Plan, facts: HostFacts) -> Finding | None:
    """DFlash reads layers of all stages; most families cannot hand them on."""
    words = plan.settings.extra_args
    flags = {"-pp", "--pipeline-parallel-size", "--pp-size"}
    hit = next((word for word in words if word.split("=", 1)[0].replace("_", "-") in flags), None)
    if not plan.drafting or hit is None:
        return None
    return Finding(
        "pipeline-with-drafter",
        "error",
        f"EXTRA_ARGS holds {hit}, and the drafter reads layers of every stage",
        "split by TENSOR_PARALLEL_SIZE, or set DFLASH_DRAFTER=off",
        "vLLM eagle3_utils.py: does not support dflash with pipeline parallelism; SGLang: pp_size == 1",
        why="the engine refuses to start",
    )


def master_address_missing(plan: Plan, facts: HostFacts) -> Finding | None:
    """The machines have to find each other."""
    if not plan.settings.several_machines or plan.settings.master_addr:
        return None
    return Finding(
        "master-address-missing",
        "error",
        "NODES says that several machines serve together, and MASTER_ADDR is empty",
        "set MASTER_ADDR to the address of rank 0 on the link between them (`init --master-addr`)",
        "vLLM 0.33 --master-addr",
        why="ranks above 0 do not know whom to join",
    )


def graphs_across_machines(plan: Plan, facts: HostFacts) -> Finding | None:
    """Two GB10 do not capture graphs together."""
    if not plan.settings.several_machines or not plan.profile.hardware.unified or plan.settings.enforce_eager:
        return None
    return Finding(
        "graphs-across-machines",
        "warning",
        "ENFORCE_EAGER is off on two machines with GB10",
        "set ENFORCE_EAGER=on",
        "vllm-project/vllm#46253, open",
        why="the engine hangs or ends while it captures graphs",
    )


RULES: tuple[Rule, ...] = (
    heads_do_not_divide,
    more_gpus_than_there_are,
    pipeline_with_drafter,
    master_address_missing,
    graphs_across_machines,
)
