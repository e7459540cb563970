"""Does the same work on all hosts at the same time, and makes one error for the hosts that failed.

A question to a host is repeated before its answer is judged: one lost connection is not a lost host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

from dflash_deploy.errors import DeployError, HostUnfit, HostUnreachable
from dflash_deploy.features.fleet.file import Fleet, FleetHost
from dflash_deploy.features.fleet.ssh import Calls, Session

T = TypeVar("T")


@dataclass(frozen=True)
class HostOutcome(Generic[T]):
    """What the work on one host returned, or the error that it ended with; `seconds` is its duration."""

    host: FleetHost
    seconds: float
    result: T | None = None
    error: DeployError | None = None


def on_each(fleet: Fleet, hosts: Sequence[FleetHost], work: Callable[[Session], T]) -> Mapping[str, HostOutcome[T]]:
    """Do the work for all hosts at the same time; return the outcomes by name, in the order of the hosts.

    An error of one host leaves the others running. If this program is interrupted, all connections end.
    """
    calls = Calls()

    def one(host: FleetHost) -> HostOutcome[T]:
        began = time.monotonic()
        try:
            done = work(Session(fleet, host, calls))
        except DeployError as problem:
            return HostOutcome(host, time.monotonic() - began, error=problem)
        return HostOutcome(host, time.monotonic() - began, result=done)

    with ThreadPoolExecutor(len(hosts)) as pool:
        futures = [pool.submit(one, host) for host in hosts]
        try:
            left = set(futures)
            while left:
                # a wait without an end would not notice Ctrl-C on every platform
                _, left = wait(left, timeout=1.0, return_when=FIRST_COMPLETED)
        except BaseException:
            calls.end()
            raise
        return {host.name: future.result() for host, future in zip(hosts, futures, strict=True)}


def failure_of_all(outcomes: Mapping[str, HostOutcome[T]]) -> DeployError | None:
    """One error for those of all hosts, of the class of the first; `None` if no host failed."""
    failed = [outcome for outcome in outcomes.values() if outcome.error is not None]
    if not failed:
        return None
    first = failed[0].error
    if len(failed) == 1 or first is None:
        return first
    names = ", ".join(outcome.host.name for outcome in failed)
    # the exit code is that of the first failure
    said = f"{len(failed)} of {len(outcomes)} hosts failed ({names}); {first.message}"
    return type(first)(said, hint=first.hint, detail=first.detail)


TRIES = 3

PAUSE = 2.0
"""Seconds between two tries."""


def ask_again(
    ask: Callable[[], T],
    *,
    enough: Callable[[T], bool] = lambda answer: True,
    tries: int = TRIES,
    wait: Callable[[float], None] = time.sleep,
) -> T:
    """Return the first answer that is `enough`, else the last one. Raises the error of the last try.

    Only errors of a host are tried again: one that cannot be reached, or answers something else.
    """
    for _ in range(tries - 1):
        try:
            answer = ask()
        except (HostUnreachable, HostUnfit):
            wait(PAUSE)
            continue
        if enough(answer):
            return answer
        wait(PAUSE)
    return ask()
