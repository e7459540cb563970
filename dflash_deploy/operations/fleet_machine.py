"""`fleet facts`: what a fleet needs to know of this machine."""

from __future__ import annotations

import platform
from dataclasses import dataclass

from dflash_deploy import __version__
from dflash_deploy.operations.fleet_hosts import place_here


@dataclass(frozen=True)
class MachineFacts:
    """What the terminal of a fleet asks a host for, once dflash-deploy is installed on it."""

    home: str
    assets: str
    architecture: str

    def document(self) -> dict[str, object]:
        """The `data` of `fleet facts --json`."""
        return {
            "version": __version__,
            "home": self.home,
            "assets": self.assets,
            "architecture": self.architecture,
        }


def fleet_facts() -> MachineFacts:
    """Return the facts of this machine."""
    place = place_here()
    return MachineFacts(place.home, place.assets, platform.machine())
