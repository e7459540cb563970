"""From `up` to the first answer: preflight, start, wait, explain."""

from dflash_deploy.boot.bring_up import Ready, bring_up, endpoint_of, join, reader_of
from dflash_deploy.boot.diagnosis import Diagnosis, Ending, Findings, Reader
from dflash_deploy.boot.meanwhile import trying
from dflash_deploy.boot.preflight import preflight
from dflash_deploy.boot.remedy import changes_of, remedied
from dflash_deploy.boot.roll_back import go_back
from dflash_deploy.boot.rotate import Rotation, is_up, rotate_running
from dflash_deploy.boot.timekeeper import Progress, Show

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
