"""From `up` to the first answer: preflight, start, wait, explain."""

from dflash_deploy.boot.bring_up import Ready, bring_up, endpoint_of, preflight
from dflash_deploy.boot.rotate import Rotation, is_up, rotate_running
from dflash_deploy.boot.wait import Progress

__all__ = ["Progress", "Ready", "Rotation", "bring_up", "endpoint_of", "is_up", "preflight", "rotate_running"]
