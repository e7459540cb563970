"""The `data` of `monitor`. No key is in any document."""

from __future__ import annotations

from collections.abc import Mapping

from dflash_deploy.features.monitoring.operations import MonitoringExport, MonitoringState
from dflash_deploy.schemas.common import DocumentedDict
from dflash_deploy.schemas.table import CommandData


class MonitorDownData(DocumentedDict):
    """What `monitor down` did."""

    stopped: bool
    """Whether there was something to stop."""


class MonitorTestData(DocumentedDict):
    """A test alert that Alertmanager took."""

    receivers: list[str]
    """Kind of each receiver that it is for, such as `webhook`."""


DOCUMENTS: Mapping[str, CommandData] = {
    "monitor up": CommandData((MonitoringState,)),
    "monitor down": CommandData((MonitorDownData,)),
    "monitor status": CommandData((MonitoringState,)),
    "monitor test": CommandData((MonitorTestData,)),
    "monitor export": CommandData((MonitoringExport,)),
}
