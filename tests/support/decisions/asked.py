"""Which plans vLLM is asked about, and what it decided; each plan of a released vLLM for GPUs has an answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from dflash_deploy.plan import Plan
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
    """What a decision depends on: backends on GPU, shape and drafter, a quantization on the capability."""
    profile, family, drafter = plan.profile, plan.pair.family.name, plan.pair.drafter
    quantization, capability = plan.pair.target.quantisation, profile.match.compute_capability
    yield capability, profile.gpus, family, drafter.architecture, drafter.layer_types
    yield profile.name, quantization, drafter.architecture
    yield capability, quantization
    yield family, quantization


@cache
def asked() -> tuple[tuple[Plan, Decision], ...]:
    """Plans that cover every key, with vLLM's decision about each."""
    seen: set[Key] = set()
    chosen = []
    for plan in plans():
        keys = set(_keys(plan))
        if keys - seen:
            chosen.append(plan)
            seen |= keys
    return tuple(zip(chosen, decisions([Question.of(plan) for plan in chosen]), strict=True))


def mended(plan: Plan) -> bool:
    """Whether the plan has another backend than its profile because vLLM refuses the profile's for this target."""
    name = Settings.attention_backend.name
    return any(one.name == name and one.origin == f"engine {plan.engine.name}" for one in plan.decisions)
