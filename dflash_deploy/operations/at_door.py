"""The checks of what a deployment publishes: through its door, and of each of its routes."""

from __future__ import annotations

import time
from collections.abc import Callable, Set
from dataclasses import replace

from dflash_deploy.checks import CheckResult, deployed_endpoint, run_checks
from dflash_deploy.deployment import Deployment
from dflash_deploy.plan import Plan
from dflash_deploy.runtime.select import domain_door, door_before
from dflash_deploy.startup.members import whole_endpoint
from dflash_deploy.startup.published import published_of

AT_DOOR = frozenset({"live", "models", "auth", "stream"})
"""Checks of `test` that are repeated through the door."""

QUICK_AT_DOOR = frozenset({"live", "models"})
"""Those of them that `up` ends with."""

_DOOR = "door: "
_HINT = "check name, ports and clock with `dflash-deploy doctor`; `dflash-deploy up` asks for a certificate again"


def checks_at_door(
    deployment: Deployment, plan: Plan, names: Set[str], show: Callable[[CheckResult], None]
) -> tuple[CheckResult, ...]:
    """The result of these checks through the door, and of its certificate first; empty without a door.

    Without a certificate the other checks are not asked.
    """
    if not names or door_before(deployment, plan) is None:
        return ()
    done: list[CheckResult] = []

    def keep(check: CheckResult) -> None:
        done.append(replace(check, name=f"{_DOOR}{check.name}"))
        show(done[-1])

    published = published_of(deployment, plan)
    if published is not None:
        began = time.monotonic()
        problem = domain_door(deployment, plan).uncertified()
        asked = f"a TLS handshake for {published.url}"
        seconds = round(time.monotonic() - began, 3)
        if problem:
            keep(CheckResult("certificate", "failed", seconds, asked, problem, _HINT))
            return tuple(done)
        keep(CheckResult("certificate", "passed", seconds, asked, "a valid certificate"))
    with whole_endpoint(deployment, plan) as endpoint:
        run_checks(deployed_endpoint(endpoint, plan), names, show=keep)
    return tuple(done)
