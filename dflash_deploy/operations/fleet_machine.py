"""`fleet facts`: what the terminal of a fleet needs to know of this machine."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy import __version__
from dflash_deploy.deployment import Deployment
from dflash_deploy.host.gpu import read_gpus
from dflash_deploy.host.interfaces import answers, hangs, read_links
from dflash_deploy.host.links import Link
from dflash_deploy.operations.fleet_hosts import place_here
from dflash_deploy.planning import plan_to_stop
from dflash_deploy.runtime import EngineState, runtime_for


@dataclass(frozen=True)
class MachineFacts:
    """Paths, links and GPU drivers of a machine; the peers that answer, and the state of an engine if asked for."""

    home: str
    assets: str
    architecture: str
    links: tuple[Link, ...]
    drivers: tuple[str, ...]
    peers: tuple[tuple[str, bool], ...] = ()
    engine: EngineState | None = None
    hangs: bool = False

    def document(self) -> dict[str, object]:
        """The `data` of `fleet facts --json`."""
        engine = self.engine
        return {
            "version": __version__,
            "home": self.home,
            "assets": self.assets,
            "architecture": self.architecture,
            "links": [link.document() for link in self.links],
            "drivers": list(self.drivers),
            "peers": dict(self.peers),
            "engine": engine
            and {
                "phase": engine.phase,
                "identity": engine.identity or None,
                "restarts": engine.restarts,
                "hangs": self.hangs,
            },
        }


def fleet_facts(
    directory: Path | None = None,
    *,
    peers: tuple[str, ...] = (),
    source: str = "0.0.0.0",  # noqa: S104 - any address of this machine
) -> MachineFacts:
    """Return the facts of this machine, and the state of the engine of a deployment directory if it is given.

    `peers` are addresses to ask whether they answer on the network of the address `source`. Raises NoDeployment.
    """
    place = place_here()
    engine, hung = None, False
    if directory is not None:
        deployment = Deployment.existing(directory, check=False)
        plan = plan_to_stop(deployment)
        engine, settings = runtime_for(deployment, plan).state(), plan.settings
        if engine.phase == "running" and settings.answers_requests:
            hung = hangs(settings.dflash_bind, settings.dflash_port)
    drivers = tuple(sorted({gpu.driver for gpu in read_gpus().gpus if gpu.driver}))
    asked = tuple((peer, answers(peer, source=source)) for peer in peers)
    return MachineFacts(place.home, place.assets, platform.machine(), read_links(), drivers, asked, engine, hung)
