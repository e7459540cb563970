"""Which models a profile can serve: a plan is tried for each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dflash_deploy.catalog import Catalog, EngineRelease, ModelPair, Profile
from dflash_deploy.errors import DeployError
from dflash_deploy.host import HostFacts
from dflash_deploy.plan.choose import fits
from dflash_deploy.plan.compatible import obstacles
from dflash_deploy.plan.memory import GIB
from dflash_deploy.plan.result import Plan
from dflash_deploy.plan.wishes import Choice
from dflash_deploy.rules.table import plan_deployment

ABOUT_THIS_MACHINE = frozenset({"no-image-for-processor", "driver-too-old", "master-address-missing"})
"""Findings about this machine or this request, which say nothing about the profile."""


@dataclass(frozen=True)
class Candidate:
    """A pair on a profile: the plan that serves it, or why none does."""

    profile: Profile
    pair: ModelPair
    plan: Plan | None
    why_not: str = ""


def survey(profile: Profile, pair: ModelPair, facts: HostFacts, catalog: Catalog) -> Candidate:
    """Plan the pair on the profile. Raises nothing: `why_not` says why a pair cannot be served."""
    engines = [catalog.engines[choice.release] for choice in profile.engines]
    blocked = [obstacles(profile, pair, engine) for engine in engines]
    if all(blocked):
        # of the engine with the fewest obstacles
        return Candidate(profile, pair, None, min(blocked, key=len)[0])
    try:
        plan = plan_deployment(facts, Choice(profile=profile.name, model=pair.name), catalog)
    except DeployError as problem:
        return Candidate(profile, pair, None, problem.message)
    for finding in plan.errors:
        if finding.id not in ABOUT_THIS_MACHINE:
            return Candidate(profile, pair, plan, finding.message)
    return Candidate(profile, pair, plan)


def combinations(catalog: Catalog) -> Iterator[tuple[Profile, ModelPair, EngineRelease]]:
    """Every combination of profile, pair and engine that the catalog allows; memory is not checked."""
    for profile in catalog.profiles.values():
        for pair in catalog.pairs.values():
            for choice in profile.engines:
                engine = catalog.engines[choice.release]
                if not obstacles(profile, pair, engine):
                    yield profile, pair, engine


def why_profile_does_not_fit(profile: Profile, facts: HostFacts) -> str:
    """What the machine lacks for a profile, in one phrase; empty if it lacks nothing."""
    if profile.hardware.machines > 1:
        return f"needs {profile.hardware.machines} machines: choose it with --profile on each of them"
    if fits(profile, facts):
        return ""
    if profile.match.gpus == 0:
        return "this machine has a GPU"
    found = ", ".join(f"{gpu.name} ({gpu.memory / GIB:.0f} GiB)" if gpu.memory else gpu.name for gpu in facts.gpus)
    return f"needs {profile.title}; found {found or facts.gpu_problem or 'no GPU'}"
