"""Start a deployment: preflight, start, wait for the first answer, explain failures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_deploy.lazy import lazily

if TYPE_CHECKING:
    from dflash_deploy.startup.bring_up import Ready, start_worker
    from dflash_deploy.startup.diagnosis import Diagnosis, Explanation, LogReader, ProcessEnd
    from dflash_deploy.startup.fix import apply_fix, fix_changes
    from dflash_deploy.startup.known import endpoint_of, log_reader_for
    from dflash_deploy.startup.progress import ShowProgress, StartProgress
    from dflash_deploy.startup.roll_back import restore_last_good
    from dflash_deploy.startup.rotate import Rotation, is_up, rotate_running
else:
    __getattr__ = lazily(
        __name__,
        {
            ".bring_up": ("Ready", "start_worker"),
            ".known": ("endpoint_of", "log_reader_for"),
            ".diagnosis": ("Diagnosis", "Explanation", "LogReader", "ProcessEnd"),
            ".fix": ("apply_fix", "fix_changes"),
            ".progress": ("ShowProgress", "StartProgress"),
            ".roll_back": ("restore_last_good",),
            ".rotate": ("Rotation", "is_up", "rotate_running"),
        },
    )

__all__ = [
    "Diagnosis",
    "ProcessEnd",
    "Explanation",
    "StartProgress",
    "LogReader",
    "Ready",
    "Rotation",
    "ShowProgress",
    "fix_changes",
    "endpoint_of",
    "restore_last_good",
    "is_up",
    "start_worker",
    "log_reader_for",
    "apply_fix",
    "rotate_running",
]
