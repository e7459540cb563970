"""The alerts of a deployment in the past: when each began and ended, from its Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import httpx

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.features.monitoring.api import LOOK_BACK, MonitoringApi
from dflash_deploy.features.monitoring.programs import PROMETHEUS_PROGRAM, address_of
from dflash_deploy.intake.parse import Invalid
from dflash_deploy.registry import Happened

MOST_SAMPLES = 1000
"""Points in time at which Prometheus is asked whether an alert fired."""

FINEST = 15
"""Seconds between two of them; more often Prometheus does not look."""


def alerts_between(deployment: Deployment, since: datetime, now: datetime) -> list[Happened] | None:
    """When alerts began and ended; `None` if Prometheus does not run or does not answer."""
    address = address_of(deployment, PROMETHEUS_PROGRAM)
    if not address:
        return None
    step = max(FINEST, int((now - since).total_seconds() // MOST_SAMPLES))
    try:
        with MonitoringApi(address) as api:
            fired = api.alerts_between(since, now, step)
    except (httpx.HTTPError, Invalid):
        return None
    return [event for name, instance, times in fired for event in _spans(name, instance, times, step, (since, now))]


def _spans(
    name: str, instance: str, times: Sequence[float], step: int, window: tuple[datetime, datetime]
) -> Iterator[Happened]:
    """The begin and the end of each time without a gap in which an alert fired.

    `times` are those of `MonitoringApi.alerts_between`. An alert that fired at the begin of the window began before.
    """
    since, now = window
    later = 0 if step > LOOK_BACK else step
    where = f" at {instance}" if instance else ""
    starts = [one for index, one in enumerate(times) if not index or one - times[index - 1] > 1.5 * step]
    ends = [one for index, one in enumerate(times) if index + 1 == len(times) or times[index + 1] - one > 1.5 * step]
    for began, ended in zip(starts, ends, strict=True):
        fires = "already fires" if began - since.timestamp() < step / 2 else "fires"
        yield Happened(datetime.fromtimestamp(began, UTC), f"{name} {fires}{where}")
        if now.timestamp() - ended > 2 * step:
            yield Happened(datetime.fromtimestamp(ended + later, UTC), f"{name} has ended{where}")
