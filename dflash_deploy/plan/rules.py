"""The rules that a plan is held against. Each looks at one plan on one machine and yields a finding, or nothing."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator

from dflash_deploy.host import HostFacts
from dflash_deploy.plan.choose import fits
from dflash_deploy.plan.command import is_directory
from dflash_deploy.plan.result import Finding, Plan

UNIFIED_MOST = 0.88

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

Rule = Callable[[Plan, HostFacts], Finding | None]


def judge(plan: Plan, facts: HostFacts) -> Iterator[Finding]:
    """The findings of all rules, in their order."""
    for rule in RULES:
        finding = rule(plan, facts)
        if finding is not None:
            yield finding


def _number(plan: Plan, name: str) -> int | None:
    """A whole number among the settings. Other text is none here; `serve.settings` refuses it by name."""
    value = plan.values.get(name, "")
    return int(value) if value.isascii() and value.isdigit() else None


def hardware_differs(plan: Plan, facts: HostFacts) -> Finding | None:
    """A profile for other hardware than this may be meant for another machine."""
    if fits(plan.profile, facts):
        return None
    seen = ", ".join(gpu.name for gpu in facts.gpus) or "no GPU"
    return Finding(
        "hardware-differs",
        "warning",
        f"profile {plan.profile.name} is for {plan.profile.title}; this machine has {seen}",
        "use the files on the machine they are for, or leave --profile out",
    )


def target_needs_loader(plan: Plan, facts: HostFacts) -> Finding | None:
    """A checkpoint format that the engine is known to refuse."""
    missing = [need for need in plan.pair.needs if need not in plan.engine.provides]
    if not missing:
        return None
    return Finding(
        "target-needs-loader",
        "error",
        f"vLLM {plan.engine.version} refuses {plan.pair.target.repo}: it has no loader for {', '.join(missing)}",
        f"choose another target: dflash-deploy init --force --profile {plan.profile.name} --pair qwen3.5-27b-fp8",
        "the list of ModelOpt algorithms in vLLM 0.33.0",
    )


def draft_tokens_exceed_block(plan: Plan, facts: HostFacts) -> Finding | None:
    """vLLM does not check this for dflash; positions beyond the block were never trained."""
    draft_tokens, block = _number(plan, "DFLASH_NUM_SPEC_TOKENS"), plan.pair.drafter.block_size
    if not plan.drafting or draft_tokens is None or draft_tokens < block:
        return None
    return Finding(
        "draft-tokens-exceed-block",
        "error",
        f"DFLASH_NUM_SPEC_TOKENS={draft_tokens}, but the drafter's block of {block} holds {block - 1}",
        f"set DFLASH_NUM_SPEC_TOKENS={block - 1} or less",
        "drafter config.json block_size; the first position of a block is the last accepted token",
    )


def drafter_named_twice(plan: Plan, facts: HostFacts) -> Finding | None:
    """Two directories for one drafter: the second is used, and the first is what was probably meant."""
    drafter, path = plan.values["DFLASH_DRAFTER"], plan.values["DRAFTER_HOST_PATH"]
    if not plan.drafting or not is_directory(drafter) or drafter == path:
        return None
    return Finding(
        "drafter-named-twice",
        "error",
        f"DFLASH_DRAFTER={drafter}, but DRAFTER_HOST_PATH={path} says that its weights lie elsewhere",
        "empty DRAFTER_HOST_PATH, or write the same directory into both",
    )


def budget_too_small(plan: Plan, facts: HostFacts) -> Finding | None:
    """Releases before 0.33 write out of bounds when the draft positions do not fit the budget."""
    budget, sequences = _number(plan, "MAX_NUM_BATCHED_TOKENS"), _number(plan, "MAX_NUM_SEQS")
    draft_tokens = _number(plan, "DFLASH_NUM_SPEC_TOKENS")
    if not plan.drafting or budget is None or sequences is None or draft_tokens is None:
        return None
    needed = sequences * (draft_tokens + 1)
    if budget >= needed:
        return None
    return Finding(
        "budget-too-small",
        "error",
        f"MAX_NUM_BATCHED_TOKENS={budget} is below {sequences} sequences x {draft_tokens + 1} positions = {needed}",
        f"set MAX_NUM_BATCHED_TOKENS to {needed} or more, or lower MAX_NUM_SEQS",
        "vllm-project/vllm#53970, #51655",
    )


def open_to_the_network(plan: Plan, facts: HostFacts) -> Finding | None:
    """Stock vLLM guards /v1 with the key, and leaves other routes open."""
    host = plan.values["DFLASH_BIND"]
    if host in LOOPBACK:
        return None
    return Finding(
        "open-to-the-network",
        "warning",
        f"the endpoint listens on {host}: whoever can reach it can use /invocations and /metrics without the key",
        "set DFLASH_BIND=127.0.0.1 and put a reverse proxy in front that lets only /v1 through",
        "measured with vLLM 0.32: 17 routes answer without the key",
    )


def unified_memory_overcommitted(plan: Plan, facts: HostFacts) -> Finding | None:
    """On unified memory the share counts what the system needs too."""
    share = plan.values.get("GPU_MEMORY_UTILIZATION", "")
    if not plan.profile.unified_memory or not share or float(share) <= UNIFIED_MOST:
        return None
    return Finding(
        "unified-memory-overcommitted",
        "error",
        f"GPU_MEMORY_UTILIZATION={share} leaves the system too little of the memory it shares with the GPU",
        f"set GPU_MEMORY_UTILIZATION={UNIFIED_MOST} or less",
        "AEON-7/Qwen3.6-27B AGENTS.md: never above 0.88 on a DGX Spark",
    )


def base_image_unseen(plan: Plan, facts: HostFacts) -> Finding | None:
    """A tag that follows the engine's naming, and that nobody here has pulled."""
    if plan.runtime == "native" or plan.engine.base_image_seen:
        return None
    if plan.values["DFLASH_BASE_IMAGE"] != plan.engine.base_image:
        return None
    return Finding(
        "base-image-unseen",
        "note",
        f"the base image {plan.engine.base_image} is named as vLLM names its images; this project has not pulled it",
        "if it cannot be pulled, name another release in DFLASH_BASE_IMAGE",
    )


def bind_is_no_address(plan: Plan, facts: HostFacts) -> Finding | None:
    """Docker publishes on addresses, and Compose's short syntax has no place for an IPv6 one."""
    host = plan.values["DFLASH_BIND"]
    if plan.runtime == "native" or _is_ipv4(host):
        return None
    return Finding(
        "bind-is-no-address",
        "error",
        f"DFLASH_BIND={host} is no IPv4 address, and Docker publishes on those",
        "set DFLASH_BIND=127.0.0.1 for this machine alone",
        "Compose specification, ports",
    )


def _is_ipv4(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True


def safety_notice(plan: Plan, facts: HostFacts) -> Finding | None:
    """What the owner of the box must know about the target."""
    if not plan.pair.notice:
        return None
    return Finding("target-notice", "note", plan.pair.notice, "choose another pair if that does not suit you")


RULES: tuple[Rule, ...] = (
    hardware_differs,
    target_needs_loader,
    draft_tokens_exceed_block,
    drafter_named_twice,
    budget_too_small,
    unified_memory_overcommitted,
    base_image_unseen,
    bind_is_no_address,
    open_to_the_network,
    safety_notice,
)
