"""From `up` to the first answer: preflight, start, wait, explain."""

from dflash_deploy.startup.bring_up import Ready, bring_up, endpoint_of, join, reader_of
from dflash_deploy.startup.diagnosis import Diagnosis, Ending, Findings, Reader
from dflash_deploy.startup.preflight import preflight
from dflash_deploy.startup.remedy import changes_of, remedied
from dflash_deploy.startup.roll_back import go_back
from dflash_deploy.startup.rotate import Rotation, is_up, rotate_running
from dflash_deploy.startup.temporary_settings import trying
from dflash_deploy.startup.timekeeper import Progress, Show

__all__ = [
    "Diagnosis",
    "Ending",
    "Findings",
    "Progress",
    "Reader",
    "Ready",
    "Rotation",
    "Show",
    "bring_up",
    "changes_of",
    "endpoint_of",
    "go_back",
    "is_up",
    "join",
    "preflight",
    "reader_of",
    "remedied",
    "rotate_running",
    "trying",
]
