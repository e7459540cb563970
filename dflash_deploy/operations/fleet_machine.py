"""`fleet facts`: what the terminal of a fleet needs to know of this machine."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy import __version__
from dflash_deploy.deployment import Deployment
from dflash_deploy.deployment.router_files import seen_workers
from dflash_deploy.host.gpu import read_gpus
from dflash_deploy.host.interfaces import answers, hangs, read_links
from dflash_deploy.host.links import Link
from dflash_deploy.operations.fleet_hosts import place_here
from dflash_deploy.plan import Plan
from dflash_deploy.planning import plan_to_stop
from dflash_deploy.runtime import EngineState, runtime_for
from dflash_deploy.runtime.select import several_runtime


@dataclass(frozen=True)
class MachineFacts:
    """Paths, links and GPU drivers of a machine; the peers that answer, and the state of an engine if asked for.

    `routed` are the URLs of the engines to which the router of this machine sends requests now, and
    `router_engines` the addresses of ROUTER_ENGINES.
    """

    home: str
    assets: str
    architecture: str
    links: tuple[Link, ...]
    drivers: tuple[str, ...]
    peers: tuple[tuple[str, bool], ...] = ()
    engine: EngineState | None = None
    hangs: bool = False
    routed: tuple[str, ...] = ()
    router_engines: tuple[str, ...] = ()

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
            "routed": list(self.routed),
            "router_engines": list(self.router_engines),
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
    routed: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    if directory is not None:
        deployment = Deployment.existing(directory, check=False)
        plan = plan_to_stop(deployment)
        engine, settings = runtime_for(deployment, plan).state(), plan.settings
        if engine.phase == "running" and settings.answers_requests:
            hung = hangs(settings.dflash_bind, settings.dflash_port)
        routed, elsewhere = _routed(deployment, plan), settings.router_engines
    drivers = tuple(sorted({gpu.driver for gpu in read_gpus().gpus if gpu.driver}))
    asked = tuple((peer, answers(peer, source=source)) for peer in peers)
    links, kind = read_links(), platform.machine()
    return MachineFacts(place.home, place.assets, kind, links, drivers, asked, engine, hung, routed, elsewhere)


def _routed(deployment: Deployment, plan: Plan) -> tuple[str, ...]:
    """The URLs of the engines that the router sends requests to; none if no router runs."""
    seen = seen_workers(deployment) if plan.settings.several_engines else None
    if seen is None or several_runtime(deployment, plan).router.state().phase != "running":
        return ()
    return tuple(worker.url for worker in seen[1] if worker.healthy)
