"""`doctor`: reports what would prevent a deployment from starting on this machine, and how to fix it."""

from dflash_deploy.doctor.check import Check, Status
from dflash_deploy.doctor.context import DoctorContext
from dflash_deploy.doctor.table import run_checks

__all__ = ["DoctorContext", "Check", "Status", "run_checks"]
