"""The `data` of `monitor`. No key is in any document."""

from __future__ import annotations

from dflash_deploy.schemas.common import Documented


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
