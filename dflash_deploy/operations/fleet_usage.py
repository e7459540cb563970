"""`fleet keys usage`: what each key used on all hosts together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.client.key_usage import KeyUsage, added_up
from dflash_deploy.operations.fleet_hosts import FleetResult, open_fleet
from dflash_deploy.operations.fleets import LOOKS, answering
from dflash_deploy.operations.reporter import SILENT, Reporter


@dataclass(frozen=True)
class FleetUsage:
    """What each key used on the hosts that answered, by name."""

    usage: Sequence[KeyUsage]
    result: FleetResult

    def document(self) -> dict[str, object]:
        """The `data` of `fleet keys usage --json`."""
        return {"keys": [used.document() for used in self.usage], **self.result.document()}


def fleet_usage_of_keys(directory: Path, *, reporter: Reporter = SILENT) -> FleetUsage:
    """What each key used since the start of the engines, added up over the hosts.

    Each host counts the requests that its engine answered. Raises as `open_fleet`. Failures of hosts are in the result,
    and the sums are those of the others.
    """
    opened = open_fleet(directory, (), reporter)
    outcomes = opened.on_each(
        lambda one: opened.call(one, "keys usage", "--json", seconds=LOOKS), answering(opened, opened.hosts)
    )
    result = opened.results(outcomes, "counted")
    found = (
        KeyUsage(one.name, one.requests, one.prompt_tokens, one.generation_tokens, one.in_flight)
        for host in result.hosts
        if host.document is not None and host.error is None
        for one in host.document.data.keys
    )
    return FleetUsage(added_up(found), result)
