"""What limits that hold over several gateways cost a request: CPU time with a shared directory and without one."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.rows import Row
from dflash_deploy.serve.gateway.keys import Accepted
from dflash_deploy.serve.gateway.limits import KeyLimits

REPEATS = 5
REQUESTS = 2000
OTHERS = 3
IN_FLIGHT = 8
"""Requests in flight at each of the other gateways."""


def rows() -> Iterator[Row]:
    """A key with each limit, and with both, beside three gateways with eight requests in flight each."""
    most = (OTHERS + 1) * IN_FLIGHT
    for what, in_flight, tokens in (
        ("requests in flight", most, None),
        ("tokens per minute", None, 10**9),
        ("both", most, 10**9),
    ):
        key = Accepted("alice", b"", "infer", in_flight, tokens)
        with tempfile.TemporaryDirectory() as folder:
            others = [KeyLimits(Path(folder)) for _ in range(OTHERS)]
            for other in others:
                for _ in range(IN_FLIGHT):
                    other.admit(key, time.monotonic())
            sides = [KeyLimits(), KeyLimits(Path(folder))]
            alone, shared = (median(_microseconds(limits, key) for _ in range(REPEATS)) for limits in sides)
            yield Row(what, alone, shared, "us", "below 200 us", REPEATS)


def _microseconds(limits: KeyLimits, key: Accepted) -> float:
    """The CPU time of one request's part."""
    begun = time.process_time()
    for _ in range(REQUESTS):
        now = time.monotonic()
        admission = limits.admit(key, now)
        limits.leave(key, admission.place)
        limits.reserve(key, 2, now)
        limits.settle(key, 2, now, 1, now)
    return (time.process_time() - begun) / REQUESTS * 1e6
