"""The table of all rules, and a plan checked against it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from dflash_deploy.catalog import Catalog
from dflash_deploy.host import HostFacts
from dflash_deploy.host.facts import with_named_slices
from dflash_deploy.host.gpu import VISIBLE
from dflash_deploy.plan.plan import NO_CHECKPOINTS, decide
from dflash_deploy.plan.result import Finding, Plan
from dflash_deploy.plan.wishes import Checkpoints, Choice
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

CHECKPOINT_RULES: tuple[Rule, ...] = tuple(rule for rule in RULES if is_about_checkpoints(rule))
"""Rules that read config.json or a GGUF header of target and drafter, which `pull` fetches before the weights."""


def judge(plan: Plan, facts: HostFacts, rules: Iterable[Rule] = RULES) -> Iterator[Finding]:
    """The findings of the rules, in their order."""
    facts = with_named_slices(facts, plan.values.get(VISIBLE, ""))
    for rule in rules:
        finding = rule(plan, facts)
        if finding is not None:
            yield finding


def plan_deployment(
    facts: HostFacts, choice: Choice, catalog: Catalog, checkpoints: Checkpoints = NO_CHECKPOINTS
) -> Plan:
    """Decide everything about one deployment, and check it against every rule. Raises what `plan.decide` raises."""
    plan = decide(with_named_slices(facts, choice.edited.get(VISIBLE, "")), choice, catalog, checkpoints)
    return replace(plan, findings=tuple(judge(plan, facts)))
