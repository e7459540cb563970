"""Start a deployment: preflight, start, wait for the first answer, explain failures."""

from dflash_deploy.startup.bring_up import Ready, bring_up, endpoint_of, log_reader_for, start_worker
from dflash_deploy.startup.diagnosis import Diagnosis, Explanation, LogReader, ProcessEnd
from dflash_deploy.startup.fix import apply_fix, fix_changes
from dflash_deploy.startup.preflight import preflight
from dflash_deploy.startup.progress import ShowProgress, StartProgress
from dflash_deploy.startup.roll_back import restore_last_good
from dflash_deploy.startup.rotate import Rotation, is_up, rotate_running
from dflash_deploy.startup.temporary_settings import temporary_settings

__all__ = [
    "Diagnosis",
    "ProcessEnd",
    "Explanation",
    "StartProgress",
    "LogReader",
    "Ready",
    "Rotation",
    "ShowProgress",
    "bring_up",
    "fix_changes",
    "endpoint_of",
    "restore_last_good",
    "is_up",
    "start_worker",
    "preflight",
    "log_reader_for",
    "apply_fix",
    "rotate_running",
    "temporary_settings",
]
