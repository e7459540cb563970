"""`status --watch`: look after look at the engine until Ctrl-C, on a terminal as a live view, else a line for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from dflash_deploy.cli.report import console

if TYPE_CHECKING:
    from dflash_deploy.client import Endpoint
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.plan import Plan
    from dflash_deploy.runtime import Runtime
    from dflash_deploy.startup.watch import Watch, Window

HEADER = f"{'time':8}  {'state':15}  {'running':>7}  {'waiting':>7}  {'tokens/s':>8}  {'length':>6}  {'cache':>5}"
PATIENCE = 5.0
"""Seconds for /metrics; an engine that does not answer by then is said not to."""


def watch(deployment: Deployment, plan: Plan, every: float, looks: int | None) -> None:
    """Look every so many seconds and show what is seen; for ever, or so many times."""
    from dflash_deploy.runtime import runtime_for
    from dflash_deploy.startup import endpoint_of
    from dflash_deploy.startup.watch import Watch

    runtime, seen = runtime_for(deployment, plan), Watch()
    with endpoint_of(deployment, plan, timeout=PATIENCE) as endpoint, _shown(deployment, endpoint) as show:
        done = 0
        while looks is None or done < looks:
            if done:
                time.sleep(every)
            show(_look(runtime, endpoint, seen))
            done += 1


def _look(runtime: Runtime, endpoint: Endpoint, seen: Watch) -> Window:
    from dflash_deploy.client import EndpointError
    from dflash_deploy.startup.watch import Reading

    state = runtime.state()
    try:
        metrics = endpoint.metrics() if state.phase == "running" else None
    except EndpointError:
        metrics = None
    return seen.see(Reading(time.monotonic(), state.phase, state.identity, metrics))


@contextmanager
def _shown(deployment: Deployment, endpoint: Endpoint) -> Iterator[Callable[[Window], None]]:
    screen = console()
    if screen.is_terminal and not screen.is_dumb_terminal:
        from dflash_deploy.cli.live import View

        with View(f"{endpoint.model} at {endpoint.url}/v1", screen, deployment.redact) as view:
            yield view.show
    else:
        screen.print(HEADER, markup=False)
        yield lambda line: screen.print(deployment.redact(_line(line)), markup=False, highlight=False)


def _line(line: Window) -> str:
    def figure(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    return (
        f"{datetime.now():%H:%M:%S}  {line.state:15}  {figure(line.running, 'd'):>7}  {figure(line.waiting, 'd'):>7}  "
        f"{figure(line.tokens_per_second, '.1f'):>8}  {figure(line.acceptance_length, '.2f'):>6}  "
        f"{figure(line.cache, '.0%'):>5}  {line.remark}"
    ).rstrip()
