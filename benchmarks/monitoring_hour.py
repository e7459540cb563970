"""An hour of healthy load with real clocks: which alerts became pending, and which fired.

    python -m benchmarks monitoring-hour

A real llama.cpp server. Prometheus, Alertmanager, node exporter and blackbox exporter
are Debian's, with the rules, times and thresholds of `monitor up`.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from statistics import fmean
from typing import Any

from rich.table import Table

from benchmarks.attack import deployed
from dflash_deploy.client.answers import EndpointError
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.features.monitoring.project import INTERVAL
from dflash_deploy.planning import plan_of
from dflash_deploy.startup.engine import endpoint_of
from tests.support.monitored import Received, watched, webhook, webhook_config
from tests.support.prometheus import Prometheus, blackbox_exporter, node_exporter

MINUTES = 60.0
PAUSE = 3.0
"""Seconds between an answer and the next request."""
ANSWER = 48
"""Tokens of an answer, at most."""
AIM = "no alert fires"
READ = ["dflash:up == 1", "dflash:memory_available_bytes"]
"""What has a value once all is read: without it no alert could fire."""


@dataclass
class Load:
    """What happened meanwhile: requests, how many of them failed, and the load average of the machine."""

    requests: int = 0
    failed: int = 0
    averages: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Held:
    """How many minutes an alert was in one state, at one place."""

    alert: str
    state: str
    place: str
    minutes: float


def table() -> Table:
    """One row for each alert that was pending or fired; without any, one row that says so."""
    received: Received = Queue()
    with (
        tempfile.TemporaryDirectory() as folder,
        deployed() as directory,
        webhook(received) as url,
        _watched(directory, Path(folder), url) as watching,
    ):
        if missing := watching.missing(READ):
            raise SystemExit(f"Prometheus does not read {', '.join(missing)}")
        began = time.time()
        load = _asked(directory)
        found = list(_held(watching.curve("ALERTS", began, INTERVAL, round((time.time() - began) / INTERVAL))))
    return _drawn(found, load, received.qsize())


@contextmanager
def _watched(directory: Path, place: Path, url: str) -> Iterator[Prometheus]:
    """The Prometheus and the Alertmanager of `monitor up`, and exporters, until the block ends."""
    with node_exporter(place) as node, blackbox_exporter(place) as blackbox:
        ports = {"node": int(node.rpartition(":")[2]), "blackbox": int(blackbox.rpartition(":")[2])}
        with watched(directory, webhook_config(url), **ports) as project:
            yield Prometheus(project.url())


def _asked(directory: Path) -> Load:
    """Requests one after the other, for MINUTES."""
    deployment, load, until = Deployment(directory), Load(), time.monotonic() + MINUTES * 60
    with endpoint_of(deployment, plan_of(deployment)) as endpoint:
        while time.monotonic() < until:
            load.requests += 1
            try:
                endpoint.chat(f"Request {load.requests}: count from 1 to 20.", max_tokens=ANSWER)
            except EndpointError:
                load.failed += 1
            load.averages.append(os.getloadavg()[0])
            time.sleep(PAUSE)
    return load


def _held(series: Iterable[dict[str, Any]]) -> Iterator[Held]:
    for one in series:
        labels = one["metric"]
        place = labels.get("instance", "")
        yield Held(labels["alertname"], labels["alertstate"], place, len(one["values"]) * INTERVAL / 60)


def _drawn(found: Iterable[Held], load: Load, notified: int) -> Table:
    drawn = Table("alert", "state", "at", "minutes", title=f"monitoring-hour, aim: {AIM}")
    rows = sorted(found, key=lambda one: (one.state, one.alert, one.place))
    for one in rows:
        drawn.add_row(one.alert, one.state, one.place, f"{one.minutes:.1f}")
    if not rows:
        drawn.add_row("none", "-", "-", "-")
    fired = sorted({one.alert for one in rows if one.state == "firing"})
    drawn.caption = (
        f"{MINUTES:.0f} minutes, {load.requests} requests, {load.failed} of them failed; fired: "
        f"{', '.join(fired) or 'none'}; notifications at the webhook: {notified}; "
        f"load average of {os.cpu_count()} cores: {fmean(load.averages):.1f}, at most {max(load.averages):.1f}"
    )
    return drawn
