"""`doctor`: reports what would prevent a deployment from starting on this machine, and how to fix it."""

from dflash_deploy.doctor.check import Check, Status
from dflash_deploy.doctor.subject import Subject
from dflash_deploy.doctor.table import run_checks

__all__ = ["Check", "Status", "Subject", "run_checks"]
