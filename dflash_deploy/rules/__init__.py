"""The rules that every plan is checked against: a table of small functions, each named after what it finds.

A rule reads one plan for one machine and returns a finding or `None`. A finding says what was found, why it matters,
what to do, and the source of the fact. `up` refuses a plan with an `error`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_deploy.lazy import lazily

if TYPE_CHECKING:
    from dflash_deploy.rules.kinds import Rule
    from dflash_deploy.rules.table import CHECKPOINT_RULES, RULES, judge, plan_deployment
else:
    __getattr__ = lazily(
        __name__,
        {
            ".kinds": ("Rule",),
            ".table": ("CHECKPOINT_RULES", "RULES", "judge", "plan_deployment"),
        },
    )

__all__ = ["CHECKPOINT_RULES", "RULES", "Rule", "judge", "plan_deployment"]
