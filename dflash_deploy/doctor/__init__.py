"""`doctor`: what would keep a deployment from starting on this machine, and what to do about it."""

from dflash_deploy.doctor.check import Check, Status
from dflash_deploy.doctor.subject import Subject
from dflash_deploy.doctor.table import run_checks

__all__ = ["Check", "Status", "Subject", "run_checks"]
