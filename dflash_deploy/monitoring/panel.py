"""What a panel of a dashboard is: what it shows, in which unit, and what to do if it is red."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dflash_deploy.monitoring.limits import limit

Unit = Literal[
    "short", "s", "percentunit", "bytes", "celsius", "watt", "reqps", "none", "dateTimeAsIso", "tokens/s", "1/s"
]
"""A unit of Grafana; the two with a slash are shown as they are."""

CHOSEN = 'deployment=~"$deployment"'
"""The deployments that are selected at the top of the dashboard."""

BY_REPLICA = "{{deployment}} {{replica}}"
BY_MACHINE = "{{instance}}"


@dataclass(frozen=True)
class Curve:
    """One expression and the legend of its series."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One panel. `red`: what to do if its value is bad."""

    title: str
    curves: tuple[Curve, ...]
    unit: Unit
    says: str
    red: str
    kind: Literal["timeseries", "stat"] = "timeseries"
    width: int = 12


def series(record: str, legend: str = BY_REPLICA, matchers: str = "") -> Curve:
    """A recorded metric of the selected deployments."""
    return Curve(f"dflash:{record}{{{', '.join(filter(None, (CHOSEN, matchers)))}}}", legend)


def of_limit(name: str) -> Curve:
    """A limit of the selected deployments."""
    return Curve(f"{limit(name)}{{{CHOSEN}}}", "limit")
