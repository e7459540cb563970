"""The rules that a plan is held against: a table of small functions, each named after what it finds.

A rule looks at one plan on one machine and yields a finding, or nothing. What was seen, why it matters and what to do
are three sentences; the source says where the fact comes from. `error` is what `up` refuses.
"""

from __future__ import annotations

from collections.abc import Iterator

from dflash_deploy.host import HostFacts
from dflash_deploy.plan.result import Finding, Plan
from dflash_deploy.plan.rules import arguments, drafter, endpoint, machine, numerics, parallel, sizes, weights
from dflash_deploy.plan.rules.kinds import Rule

RULES: tuple[Rule, ...] = (
    *machine.RULES,
    *sizes.RULES,
    *numerics.RULES,
    *weights.RULES,
    *drafter.RULES,
    *parallel.RULES,
    *arguments.RULES,
    *endpoint.RULES,
)


def judge(plan: Plan, facts: HostFacts) -> Iterator[Finding]:
    """The findings of all rules, in their order."""
    for rule in RULES:
        finding = rule(plan, facts)
        if finding is not None:
            yield finding
