"""Pure decisions: facts, a choice and the catalog in, one immutable Plan out."""

from dflash_deploy.plan.choose import choose_profile, choose_runtime
from dflash_deploy.plan.command import engine_command, engine_environment
from dflash_deploy.plan.plan import Choice, plan_deployment
from dflash_deploy.plan.result import Finding, Plan, RuntimeName, Setting, Severity

__all__ = [
    "Choice",
    "Finding",
    "Plan",
    "RuntimeName",
    "Setting",
    "Severity",
    "choose_profile",
    "choose_runtime",
    "engine_command",
    "engine_environment",
    "plan_deployment",
]
