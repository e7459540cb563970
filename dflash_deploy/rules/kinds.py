"""The type of a rule, the mark of rules that read checkpoints, and what several rules ask and advise."""

from __future__ import annotations

from collections.abc import Callable

from dflash_deploy.catalog.releases import Backend
from dflash_deploy.host.machine import HostFacts
from dflash_deploy.plan.compatible import backend_on
from dflash_deploy.plan.result import Finding, Plan

Rule = Callable[[Plan, HostFacts], Finding | None]

CHOOSE_ANOTHER = "choose another quantization of the target: `dflash-deploy models list` shows which this machine runs"


def reads_checkpoints(rule: Rule) -> Rule:
    """Mark a rule that reads `plan.checkpoints`: `pull` checks it before it fetches the weights."""
    vars(rule)["reads_checkpoints"] = True
    return rule


def is_about_checkpoints(rule: Rule) -> bool:
    """Whether a rule is marked with `reads_checkpoints`."""
    return "reads_checkpoints" in vars(rule)


def backend(plan: Plan, name: str) -> Backend | None:
    """The release's entry for an attention backend on the planned GPU; `None` if it does not run there."""
    return backend_on(plan.profile, plan.engine, name)
