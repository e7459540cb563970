"""The `data` of the commands of `fleet`."""

from __future__ import annotations

from collections.abc import Mapping

from dflash_deploy.document import CommandData
from dflash_deploy.features.fleet.host import FetchedWeights, MachineFacts, Routed
from dflash_deploy.features.fleet.operations import FleetCreated
from dflash_deploy.features.fleet.settings import FleetResult

DOCUMENTS: Mapping[str, CommandData] = {
    "fleet init": CommandData((FleetCreated,)),
    **{f"fleet {name}": CommandData((FleetResult,)) for name in ("up", "status", "test", "down", "restart")},
    "fleet facts": CommandData((MachineFacts,)),
    "fleet fetch": CommandData((FetchedWeights,), streams=True),
    "fleet route": CommandData((Routed,), streams=True),
}
