"""What rules are made of."""

from __future__ import annotations

from collections.abc import Callable

from dflash_deploy.catalog.releases import Backend
from dflash_deploy.host import HostFacts
from dflash_deploy.plan.compatible import backend_on
from dflash_deploy.plan.result import Finding, Plan

Rule = Callable[[Plan, HostFacts], Finding | None]


def reads_checkpoints(rule: Rule) -> Rule:
    """Mark a rule that reads `plan.checkpoints`: `pull` checks it before it fetches the weights."""
    vars(rule)["reads_checkpoints"] = True
    return rule


def is_about_checkpoints(rule: Rule) -> bool:
    """Whether a rule is marked with `reads_checkpoints`."""
    return "reads_checkpoints" in vars(rule)


def backend(plan: Plan, name: str) -> Backend | None:
    """What the release knows of an attention backend on this GPU; `None` where it does not have it there."""
    return backend_on(plan.profile, plan.engine, name)
