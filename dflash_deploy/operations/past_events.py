"""`status --since`: what happened to a deployment, from its journal and, if it is monitored, from its alerts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx

from dflash_deploy.client.monitoring_api import LOOK_BACK, MonitoringApi
from dflash_deploy.deployment import Deployment
from dflash_deploy.deployment.journal import events
from dflash_deploy.errors import FileRefused
from dflash_deploy.intake.invalid import Invalid
from dflash_deploy.runtime.monitoring import PROMETHEUS_PROGRAM, address_of

MOST_SAMPLES = 1000
"""Points in time at which Prometheus is asked whether an alert fired."""

FINEST = 15
"""Seconds between two of them; more often Prometheus does not look."""


@dataclass(frozen=True)
class Event:
    """Something that happened. `command` caused it; empty if no command did."""

    at: datetime
    event: str
    command: str
    text: str

    def document(self) -> dict[str, object]:
        """One entry of `status --since --json`."""
        return {
            "at": f"{self.at:%Y-%m-%dT%H:%M:%SZ}",
            "event": self.event,
            "command": self.command,
            "text": self.text,
        }


@dataclass(frozen=True)
class History:
    """What happened since a time, in order. `alerts`: the alerts are among it, because Prometheus runs."""

    since: datetime
    events: Sequence[Event]
    alerts: bool

    def document(self) -> dict[str, object]:
        """The `data` of `status --since --json`."""
        return {
            "since": f"{self.since:%Y-%m-%dT%H:%M:%SZ}",
            "events": [one.document() for one in self.events],
            "alerts": self.alerts,
        }


def history(directory: Path, seconds: float) -> History:
    """What happened in the last `seconds`. Raises NoDeployment, and FileRefused for a journal that cannot be read."""
    deployment = Deployment.existing(directory, check=False)
    now = datetime.now(UTC)
    since = now - timedelta(seconds=seconds)
    journal = (
        Event(datetime.fromisoformat(one.at), one.event, one.command, one.text)
        for one in events(deployment, since, _raised)
    )
    fired = _alerts(deployment, since, now)
    found = sorted([*journal, *(fired or ())], key=lambda one: one.at)
    return History(since, found, fired is not None)


def _raised(problem: FileRefused) -> None:
    raise problem


def _alerts(deployment: Deployment, since: datetime, now: datetime) -> list[Event] | None:
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
) -> Iterator[Event]:
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
        yield Event(datetime.fromtimestamp(began, UTC), "alert", "", f"{name} {fires}{where}")
        if now.timestamp() - ended > 2 * step:
            yield Event(datetime.fromtimestamp(ended + later, UTC), "alert", "", f"{name} has ended{where}")
