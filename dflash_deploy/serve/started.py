"""When the engine was started: one time for all of its processes, which their gateways report in /metrics."""

from __future__ import annotations

import time
from collections.abc import Mapping

STARTED = "DFLASH_STARTED"  # the variable with the time, in seconds since 1970


def with_start_time(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of an engine that starts now."""
    return {**environment, STARTED: f"{time.time():.0f}"}


def start_time(environment: Mapping[str, str]) -> float | None:
    """The time in an environment, in seconds since 1970; `None` if it has none."""
    written = environment.get(STARTED, "")
    return float(written) if written.isdecimal() and len(written) <= 12 else None
