"""Prometheus beside a deployment: recording rules, alerts and dashboards, whose files are in `monitoring/`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from dflash_deploy.registry import Feature, Happened

if TYPE_CHECKING:
    from pathlib import Path

    from dflash_deploy.deployment.directory import Deployment


def monitoring_folder(deployment: Deployment) -> Path:
    """The Compose project of a deployment, with its data."""
    return deployment.state / "monitor"


def _around(
    deployment: Deployment, command: str, note: Callable[[str], None], most: timedelta
) -> AbstractContextManager[None]:
    if not monitoring_folder(deployment).is_dir():
        return nullcontext()
    from dflash_deploy.features.monitoring.operations import silenced  # noqa: PLC0415 - only where something is monitored

    return silenced(deployment, command, note, most)


def _events(deployment: Deployment, since: datetime, now: datetime) -> Sequence[Happened] | None:
    if not monitoring_folder(deployment).is_dir():
        return None
    from dflash_deploy.features.monitoring.operations import alerts_between  # noqa: PLC0415 - the same

    return alerts_between(deployment, since, now)


FEATURE = Feature(
    commands={
        "monitor": (f"{__name__}.commands", "Metrics and alerts: up, down, status, test, export."),
    },
    documents=f"{__name__}.operations",
    around=_around,
    events=_events,
)
