"""The checks of `test`: does the endpoint answer correctly, with accepted drafts, and only with the API key?"""

from dflash_deploy.checks.acceptance import AcceptanceGrade, grade_acceptance
from dflash_deploy.checks.junit import junit
from dflash_deploy.checks.outcome import CheckOutcome, CheckResult
from dflash_deploy.checks.run import CHECKS, QUICK, CheckReport, run_checks
from dflash_deploy.checks.under_test import EndpointUnderTest, deployed_endpoint, unknown_endpoint

__all__ = [
    "CHECKS",
    "QUICK",
    "CheckResult",
    "CheckOutcome",
    "CheckReport",
    "EndpointUnderTest",
    "AcceptanceGrade",
    "grade_acceptance",
    "junit",
    "deployed_endpoint",
    "unknown_endpoint",
    "run_checks",
]
