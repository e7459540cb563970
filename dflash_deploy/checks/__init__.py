"""The checks of `test`: does the endpoint answer correctly, with accepted drafts, and only with the API key?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_deploy.lazy import lazily

if TYPE_CHECKING:
    from dflash_deploy.checks.acceptance import AcceptanceGrade, grade_acceptance
    from dflash_deploy.checks.outcome import CheckOutcome, CheckResult
    from dflash_deploy.checks.run import CHECKS, QUICK, CheckReport, run_checks
    from dflash_deploy.checks.under_test import EndpointUnderTest, deployed_endpoint, unknown_endpoint
else:
    __getattr__ = lazily(
        __name__,
        {
            ".acceptance": ("AcceptanceGrade", "grade_acceptance"),
            ".outcome": ("CheckOutcome", "CheckResult"),
            ".run": ("CHECKS", "QUICK", "CheckReport", "run_checks"),
            ".under_test": ("EndpointUnderTest", "deployed_endpoint", "unknown_endpoint"),
        },
    )

__all__ = [
    "CHECKS",
    "QUICK",
    "CheckResult",
    "CheckOutcome",
    "CheckReport",
    "EndpointUnderTest",
    "AcceptanceGrade",
    "grade_acceptance",
    "deployed_endpoint",
    "unknown_endpoint",
    "run_checks",
]
