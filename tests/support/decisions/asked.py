"""Which plans vLLM is asked about, and what it decided; each plan of a released vLLM for GPUs has an answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from dflash_deploy.plan.result import Plan
from dflash_deploy.serve.settings import Settings
from tests.parsers.combinations import planned
from tests.support.decisions.questions import RELEASE, Decision, Question, decisions

Key = tuple[object, ...]


@cache
def plans() -> tuple[Plan, ...]:
    """The plans of all combinations of the catalog with the release whose files are asked."""
    return tuple(plan for plan in planned() if plan.engine.engine == "vllm" and plan.engine.version == RELEASE)


@cache
def not_askable() -> Mapping[str, int]:
    """Combinations with other releases of vLLM for GPUs, by release: their Python files are only in images."""
    others = [plan for plan in planned() if plan.engine.engine == "vllm" and not plan.engine.cpu]
    names = [plan.engine.name for plan in others if plan.engine.version != RELEASE]
    return {name: names.count(name) for name in dict.fromkeys(names)}


def _keys(plan: Plan) -> Iterator[Key]:
    """What a decision depends on: backends on GPU, shape and drafter, heads on the GPUs, quantizations on the GPU."""
    profile, family, drafter = plan.profile, plan.pair.family.name, plan.pair.drafter
    quantization, capability = plan.pair.target.quantisation, profile.match.compute_capability
    yield capability, family, drafter.architecture, drafter.layer_types
    yield profile.match.gpus, family
    yield profile.name, quantization
    # the backends of the profile, with the type of cache that the checkpoint asks for
    if plan.pair.target.forced_fp8_kv:
        yield profile.name, family, "fp8"
    yield capability, quantization
    yield family, quantization


def _chosen() -> list[Plan]:
    """Plans that cover every key."""
    seen: set[Key] = set()
    chosen = []
    for plan in plans():
        keys = set(_keys(plan))
        if keys - seen:
            chosen.append(plan)
            seen |= keys
    return chosen


def _wrong() -> dict[str, Question]:
    """Settings that a rule refuses, by what is wrong with them."""
    by_name = {(plan.profile.name, plan.pair.name): plan for plan in plans()}
    h100, ampere = by_name["h100", "qwen3.5-27b-fp8"], by_name["rtx-3090-x4", "qwen3.5-27b-fp8"]
    gemma, sinks = by_name["rtx-3090-x4", "gemma-4-31b-it-fp8"], by_name["rtx-3090-x4", "gpt-oss-20b"]
    return {
        "gemma": Question.of(gemma, attention_backend="FLASH_ATTN"),
        "sinks": Question.of(sinks, attention_backend="FLASH_ATTN"),
        "context": Question.of(h100, max_model_len="1000000"),
        "cache": Question.of(h100, kv_cache_dtype="fp8_e5m2"),
        "fp8": Question.of(ampere, kv_cache_dtype="fp8"),
    }


@cache
def _answers() -> tuple[tuple[tuple[Plan, Decision], ...], Mapping[str, Decision]]:
    """The answers about plans and about wrong settings, of one process: its imports take longer than ten answers."""
    chosen, wrong = _chosen(), _wrong()
    answers = decisions([*(Question.of(plan) for plan in chosen), *wrong.values()])
    about_plans = tuple(zip(chosen, answers, strict=False))
    return about_plans, dict(zip(wrong, answers[len(chosen) :], strict=True))


def asked() -> tuple[tuple[Plan, Decision], ...]:
    """Plans that cover every key, with vLLM's decision about each."""
    return _answers()[0]


def wrong() -> Mapping[str, Decision]:
    """What vLLM says about settings that a rule refuses, by what is wrong with them."""
    return _answers()[1]


def mended(plan: Plan) -> bool:
    """Whether the plan has another backend than its profile because vLLM refuses the profile's for this target."""
    name = Settings.attention_backend.name
    return any(one.name == name and one.origin == f"engine {plan.engine.name}" for one in plan.decisions)


def rooms() -> Iterator[tuple[Plan, float, float]]:
    """Sequences of the full length that fit, by the plan and as vLLM divides the same bytes, where both are known."""
    for plan, decision in asked():
        if plan.memory is not None and decision.sizes:
            blocks = plan.memory.cache_bytes // decision.sizes["block_bytes"]
            yield plan, plan.memory.sequences, blocks / decision.sizes["blocks_per_sequence"]


def window_is_known(plan: Plan) -> bool:
    """Whether the catalog knows the window of each of the drafter's layers that has one."""
    drafter = plan.pair.drafter
    return drafter.layer_types in {None, "full"} or drafter.window is not None
