"""Whether the engines of a deployment accept as many draft tokens as each other."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from dflash_deploy.checks.check import CheckResult

DIFFERS_BELOW = 0.8
"""Share of the other engines' acceptance length below which an engine differs."""


RESTART = "`dflash-deploy restart` starts all of them again"


def compared(lengths: Mapping[str, float]) -> CheckResult:
    """The check `alike`: names engines whose acceptance length is below that of the others."""
    worst = {
        name: length
        for name, length in lengths.items()
        if length < DIFFERS_BELOW * median(other for engine, other in lengths.items() if engine != name)
    }
    got = ", ".join(f"{name} {length:.2f}" for name, length in lengths.items())
    hint = f"{' and '.join(worst)} may run other weights or settings: {RESTART}"
    asked = "acceptance length of each engine"
    return CheckResult("alike", "failed" if worst else "passed", 0.0, asked, got, hint if worst else "")
