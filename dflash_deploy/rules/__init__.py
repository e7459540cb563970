"""The rules that a plan is held against: a table of small functions, each named after what it finds.

A rule looks at one plan on one machine and yields a finding, or nothing. What was seen, why it matters and what to do
are three sentences; the source says where the fact comes from. `error` is what `up` refuses.
"""

from dflash_deploy.rules.kinds import Rule
from dflash_deploy.rules.table import CHECKPOINT_RULES, RULES, judge, plan_deployment

__all__ = ["CHECKPOINT_RULES", "RULES", "Rule", "judge", "plan_deployment"]
