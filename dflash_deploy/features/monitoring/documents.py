"""The `data` of `monitor`. No key is in any document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from dflash_deploy.schemas.common import Count, DocumentedDict, Seconds
from dflash_deploy.schemas.table import CommandData


class MonitorExportData(DocumentedDict):
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


class MonitorTargetData(DocumentedDict):
    """What Prometheus reads."""

    kind: Literal["engine", "router", "node", "gpu", "endpoint"]
    """What it is; `node` and `gpu` are exporters, `endpoint` is the endpoint as clients reach it."""
    address: str
    """Its address, as HOST:PORT; of an endpoint its URL."""
    health: Literal["up", "down", "unknown"]
    """Whether the last reading succeeded; `unknown` before the first one."""
    problem: str
    """Why the last reading failed; empty if it did not."""


class MonitorStateData(DocumentedDict):
    """What runs beside the deployment."""

    prometheus: str
    """Address of Prometheus; empty if it does not run."""
    alertmanager: str
    """Address of Alertmanager; empty if it does not run, so that alerts are sent to no receiver."""
    grafana: str
    """Address of Grafana; empty if it does not run."""
    targets: list[MonitorTargetData]
    """What Prometheus reads."""
    firing: list[str]
    """Names of the alerts that fire, as in docs/reference/alerts.md."""
    receivers: list[str]
    """Kind of each receiver in the configuration of Alertmanager, such as `webhook`; empty if it does not run."""


class MonitorDownData(DocumentedDict):
    """What `monitor down` did."""

    stopped: bool
    """Whether there was something to stop."""


class MonitorTestData(DocumentedDict):
    """A test alert that every receiver accepted."""

    seconds: Seconds
    """Seconds until they had accepted the alert."""


class SilenceData(DocumentedDict):
    """Alerts that are sent to no receiver for a while."""

    id: str
    """Id of the silence in Alertmanager."""
    alerts: list[str]
    """Names of the alerts; empty: all of the deployment."""
    until: str
    """When it ends, in UTC."""
    comment: str
    """Why; a command that restarts the engine names itself."""


class MonitorSilenceData(DocumentedDict):
    """What is silenced after the command."""

    silences: list[SilenceData]
    """The silences of the deployment that are in force, the one that ends first first."""
    ended: Count
    """How many silences `--end` ended."""


DOCUMENTS: Mapping[str, CommandData] = {
    "monitor up": CommandData((MonitorStateData,)),
    "monitor down": CommandData((MonitorDownData,)),
    "monitor status": CommandData((MonitorStateData,)),
    "monitor test": CommandData((MonitorTestData,)),
    "monitor silence": CommandData((MonitorSilenceData,)),
    "monitor export": CommandData((MonitorExportData,)),
}
