"""`status --watch`: a line for each look at the engine, until Ctrl-C."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING

from dflash_deploy.cli.report import console

if TYPE_CHECKING:
    from dflash_deploy.boot.watch import Line
    from dflash_deploy.plan import Plan
    from dflash_deploy.project import Deployment

HEADER = f"{'time':8}  {'state':15}  {'running':>7}  {'tokens/s':>8}  {'length':>6}"
PATIENCE = 5.0
"""Seconds for /metrics; an engine that does not answer by then is said not to."""


def watch(deployment: Deployment, plan: Plan, every: float, looks: int | None) -> None:
    """Look every so many seconds and print a line; for ever, or so many times."""
    from dflash_deploy.boot import endpoint_of
    from dflash_deploy.boot.watch import Look, Watch
    from dflash_deploy.client import EndpointError
    from dflash_deploy.runtime import runtime_for

    runtime, seen = runtime_for(deployment, plan), Watch()
    screen = console()
    screen.print(HEADER, markup=False)
    with endpoint_of(deployment, plan, timeout=PATIENCE) as endpoint:
        done = 0
        while looks is None or done < looks:
            if done:
                time.sleep(every)
            state = runtime.state()
            try:
                metrics = endpoint.metrics() if state.phase == "running" else None
            except EndpointError:
                metrics = None
            line = seen.see(Look(time.monotonic(), state.phase, state.identity, metrics))
            screen.print(deployment.redact(_shown(line)), markup=False, highlight=False)
            done += 1


def _shown(line: Line) -> str:
    def figure(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    return (
        f"{datetime.now():%H:%M:%S}  {line.state:15}  {figure(line.running, 'd'):>7}  "
        f"{figure(line.tokens_per_second, '.1f'):>8}  {figure(line.acceptance_length, '.2f'):>6}  {line.remark}"
    ).rstrip()
