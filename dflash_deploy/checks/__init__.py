"""The checks of `test`: is the endpoint right, fast and closed?"""

from dflash_deploy.checks.junit import junit
from dflash_deploy.checks.outcome import Check, Outcome
from dflash_deploy.checks.run import CHECKS, QUICK, SmokeReport, run_checks
from dflash_deploy.checks.subject import Subject, of_plan, of_stranger
from dflash_deploy.checks.verdict import Verdict, judge_drafts

__all__ = [
    "CHECKS",
    "QUICK",
    "Check",
    "Outcome",
    "SmokeReport",
    "Subject",
    "Verdict",
    "judge_drafts",
    "junit",
    "of_plan",
    "of_stranger",
    "run_checks",
]
