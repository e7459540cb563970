"""The checks of `test`: is the endpoint right, fast and closed?"""

from dflash_deploy.smoke.run import SmokeReport, run_checks
from dflash_deploy.smoke.verdict import Verdict, judge_drafts

__all__ = ["SmokeReport", "Verdict", "judge_drafts", "run_checks"]
