"""The table of all rules, a plan checked against it, and the models that a profile can serve.

The survey of a profile tries a plan for each model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from dflash_deploy.catalog.hardware import Profile
from dflash_deploy.catalog.load import Catalog
from dflash_deploy.catalog.models import ModelPair
from dflash_deploy.catalog.releases import EngineRelease
from dflash_deploy.errors import DeployError
from dflash_deploy.host.gpu import VISIBLE
from dflash_deploy.host.machine import HostFacts, with_named_slices
from dflash_deploy.plan.choose import fits
from dflash_deploy.plan.compatible import obstacles
from dflash_deploy.plan.memory import GIB
from dflash_deploy.plan.plan import NO_CHECKPOINTS, decide
from dflash_deploy.plan.result import Checkpoints, Choice, Finding, Plan
from dflash_deploy.rules import arguments, attention, drafter, endpoint, machine, numerics, parallel, sizes, weights
from dflash_deploy.rules.kinds import Rule, is_about_checkpoints

RULES: tuple[Rule, ...] = (
    *machine.RULES,
    *sizes.RULES,
    *numerics.RULES,
    *attention.RULES,
    *weights.RULES,
    *drafter.RULES,
    *parallel.RULES,
    *arguments.RULES,
    *endpoint.RULES,
)

# Rules that read config.json or a GGUF header of target and drafter, which `pull` fetches before the weights.
CHECKPOINT_RULES: tuple[Rule, ...] = tuple(rule for rule in RULES if is_about_checkpoints(rule))


def judge(plan: Plan, facts: HostFacts, rules: Iterable[Rule] = RULES) -> Iterator[Finding]:
    """The findings of the rules, in their order."""
    facts = with_named_slices(facts, plan.values.get(VISIBLE, ""))
    for rule in rules:
        finding = rule(plan, facts)
        if finding is not None:
            yield _as_sourced(finding, plan)


def _as_sourced(finding: Finding, plan: Plan) -> Finding:
    """A note in place of the warning against a value that a recipe of this hardware has, with a source, for the plan.

    It holds in a deployment too, whose `.env` does not say that the value is from a recipe.
    """
    if finding.severity != "warning":
        return finding
    for recipe in plan.profile.recipes:
        if (recipe.pair, recipe.engine) != (plan.pair.name, plan.engine.name):
            continue
        for name, chosen in recipe.settings.items():
            if finding.fix.startswith(f"set {name}=") and plan.values.get(name) == str(chosen.value) and chosen.source:
                kept = f"keep it: recipe {recipe.name} has this value, since {chosen.reason}"
                return replace(finding, severity="note", fix=kept, source=chosen.source)
    return finding


def plan_deployment(
    facts: HostFacts, choice: Choice, catalog: Catalog, checkpoints: Checkpoints = NO_CHECKPOINTS
) -> Plan:
    """Decide everything about one deployment, and check it against every rule. Raises what `plan.decide` raises."""
    plan = decide(with_named_slices(facts, choice.edited.get(VISIBLE, "")), choice, catalog, checkpoints)
    return replace(plan, findings=tuple(judge(plan, facts)))


# Findings about this machine or this request, which say nothing about the profile.
ABOUT_THIS_MACHINE = frozenset({"no-image-for-processor", "driver-too-old", "master-address-missing"})


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
