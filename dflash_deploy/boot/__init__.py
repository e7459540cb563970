"""From `up` to the first answer: preflight, start, wait, explain."""

from dflash_deploy.boot.bring_up import Ready, bring_up, endpoint_of, preflight
from dflash_deploy.boot.plainly import decoding_plainly
from dflash_deploy.boot.wait import Progress

__all__ = ["Progress", "Ready", "bring_up", "decoding_plainly", "endpoint_of", "preflight"]
