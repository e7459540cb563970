"""The `data` of `monitor`. No key is in any document."""

from __future__ import annotations

from typing import Literal

from dflash_deploy.schemas.common import Documented, Seconds


class MonitorExportData(Documented):
    """The files that `monitor export` wrote."""

    directory: str
    """Where they are."""
    files: list[str]
    """Their paths below the directory. The one that ends with `.key` has the key; only its owner can read it."""
    targets: list[str]
    """Address of each engine that Prometheus reads, as HOST:PORT."""
    key: str
    """Name of the key that Prometheus sends; it opens only GET /metrics."""
    key_added: bool
    """Whether the deployment got this key now."""


class MonitorTargetData(Documented):
    """What Prometheus reads."""

    address: str
    """Its address, as HOST:PORT."""
    health: Literal["up", "down", "unknown"]
    """Whether the last reading succeeded; `unknown` before the first one."""
    problem: str
    """Why the last reading failed; empty if it did not."""


class MonitorStateData(Documented):
    """What runs beside the deployment."""

    prometheus: str
    """Address of Prometheus; empty if it does not run."""
    alertmanager: str
    """Address of Alertmanager; empty if it does not run, so that alerts are sent to no receiver."""
    targets: list[MonitorTargetData]
    """What Prometheus reads."""
    firing: list[str]
    """Names of the alerts that fire, as in docs/reference/alerts.md."""


class MonitorDownData(Documented):
    """What `monitor down` did."""

    stopped: bool
    """Whether a program ran."""


class MonitorTestData(Documented):
    """A test alert that the receiver accepted."""

    seconds: Seconds
    """Seconds until it had accepted the alert."""
