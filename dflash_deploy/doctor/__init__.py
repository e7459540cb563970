"""`doctor`: reports what would prevent a deployment from starting on this machine, and how to fix it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_deploy.lazy import lazily

if TYPE_CHECKING:
    from dflash_deploy.doctor.check import Check, Status
    from dflash_deploy.doctor.context import DoctorContext
    from dflash_deploy.doctor.table import run_checks
else:
    __getattr__ = lazily(
        __name__,
        {
            ".check": ("Check", "Status"),
            ".context": ("DoctorContext",),
            ".table": ("run_checks",),
        },
    )

__all__ = ["DoctorContext", "Check", "Status", "run_checks"]
