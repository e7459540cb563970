"""Pure decisions: facts about the machine, a choice and the catalog in, one immutable Plan out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_deploy.lazy import lazily

if TYPE_CHECKING:
    from dflash_deploy.plan.choose import choose_profile, choose_runtime
    from dflash_deploy.plan.command import engine_command, engine_environment
    from dflash_deploy.plan.plan import decide
    from dflash_deploy.plan.result import Decision, Finding, Plan, Severity
    from dflash_deploy.plan.wishes import Checkpoints, Choice, Goal, RuntimeName
else:
    __getattr__ = lazily(
        __name__,
        {
            ".choose": ("choose_profile", "choose_runtime"),
            ".command": ("engine_command", "engine_environment"),
            ".plan": ("decide",),
            ".result": ("Decision", "Finding", "Plan", "Severity"),
            ".wishes": ("Checkpoints", "Choice", "Goal", "RuntimeName"),
        },
    )

__all__ = [
    "Checkpoints",
    "Choice",
    "Decision",
    "Finding",
    "Goal",
    "Plan",
    "RuntimeName",
    "Severity",
    "choose_profile",
    "choose_runtime",
    "engine_command",
    "engine_environment",
    "decide",
]
