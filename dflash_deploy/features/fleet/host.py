"""`fleet facts`, `fleet fetch` and `fleet route`: commands that `fleet` calls on a host.

`fleet facts` returns the facts about this machine that a fleet needs. `fleet fetch` downloads missing weights before
the ranks of one engine start. `fleet route` sets which engines of other machines get requests from the router of this
one.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dflash_deploy import __version__
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.front import seen_workers, written_workers
from dflash_deploy.deployment.lock import locked
from dflash_deploy.document import Documented
from dflash_deploy.errors import EngineNotReady, NotPossible
from dflash_deploy.features.fleet.settings import place_here
from dflash_deploy.features.fleet.ssh import NO_ROUTER
from dflash_deploy.host.gpu import read_gpus
from dflash_deploy.host.net import answers, read_links
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.operations.up import with_weights
from dflash_deploy.plan.result import Plan
from dflash_deploy.planning import plan_of, plan_to_stop
from dflash_deploy.runtime.protocol import EngineState
from dflash_deploy.runtime.select import runtime_for, several_runtime
from dflash_deploy.serve.router.files import RoutedEngine
from dflash_deploy.serve.settings import Settings
from dflash_deploy.startup.members import foreign_endpoint, foreign_of, is_foreign, proven
from dflash_deploy.startup.rolling import METRICS_TIMEOUT, Routes, drained


@dataclass(frozen=True)
class MachineFacts(Documented):
    """What a fleet needs to know of a machine."""

    version: str
    """Version of dflash-deploy."""
    home: str
    """Home directory of the user."""
    assets: str
    """Directory of the files that come with dflash-deploy."""
    architecture: str
    """Processor architecture, as `uname -m` prints it."""
    links: Sequence[Mapping[str, str | int | bool | None]]
    """Its network interfaces with an IPv4 address, as `dflash_deploy.host.net.Link` has them."""
    drivers: Sequence[str]
    """Versions of the driver of its GPUs; empty without NVIDIA GPUs."""
    peers: Mapping[str, bool]
    """For each address of `--peer`, whether it answers."""
    routed: Sequence[str]
    """URLs of the engines to which the router of the deployment of `--dir` sends requests now."""
    router_engines: Sequence[str]
    """Addresses of ROUTER_ENGINES of the deployment of `--dir`."""
    engine: Mapping[str, str] | None
    """The `phase` of the engine of the deployment of `--dir`, such as `running`; null without the option."""


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
    engine: EngineState | None = None
    routed: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    if directory is not None:
        deployment = Deployment.existing(directory, check=False)
        plan = plan_to_stop(deployment)
        engine = runtime_for(deployment, plan).state()
        routed, elsewhere = _routed(deployment, plan), plan.settings.router_engines
    return MachineFacts(
        __version__,
        place.home,
        place.assets,
        platform.machine(),
        [link.document() for link in read_links()],
        sorted({gpu.driver for gpu in read_gpus().gpus if gpu.driver}),
        {peer: answers(peer, source=source) for peer in peers},
        routed,
        elsewhere,
        None if engine is None else {"phase": engine.phase},
    )


def _routed(deployment: Deployment, plan: Plan) -> tuple[str, ...]:
    """The URLs of the engines that the router sends requests to; none if no router runs."""
    seen = seen_workers(deployment) if plan.settings.several_engines else None
    if seen is None or several_runtime(deployment, plan).router.state().phase != "running":
        return ()
    return tuple(worker.url for worker in seen[1] if worker.healthy)


def fleet_fetch(directory: Path, *, reporter: Reporter = SILENT) -> FetchedWeights:
    """Download the weights that this machine lacks, as `up` does before a start. Raises what `up` raises before it."""
    with locked(directory, "fleet fetch") as deployment:
        with_weights(deployment, reporter, ask=True)
    return FetchedWeights()


@dataclass(frozen=True)
class FetchedWeights(Documented):
    """The weights of a machine."""

    state: Literal["present"] = "present"
    """No weights are missing."""


@dataclass(frozen=True)
class Routed(Documented):
    """Which engines of other machines get requests from the router of this one."""

    engines: Sequence[str]
    """Their addresses, HOST:PORT."""
    left_out: Mapping[str, str]
    """For each address of ROUTER_ENGINES that gets no requests, why. The text may change."""


def fleet_route(directory: Path, *, without: tuple[str, ...] = (), reporter: Reporter = SILENT) -> Routed:
    """Send requests to each engine of ROUTER_ENGINES that answers, but to none of `without`.

    Waits until the requests of an engine that gets no more have ended, at most DRAIN_SECONDS. Raises NoDeployment,
    NotPossible without ROUTER_ENGINES, EngineNotReady if the router does not run, and DirectoryBusy.
    """
    with locked(directory, "fleet route") as deployment:
        plan = plan_of(deployment)
        if not plan.settings.router_engines:
            raise NotPossible(
                f"{Settings.router_engines} is empty: the router of this machine sends to no other one",
                hint="`dflash-deploy fleet up` on the terminal writes it",
            )
        router = several_runtime(deployment, plan).router
        if router.state().phase != "running":
            raise EngineNotReady(NO_ROUTER, hint="start it with `dflash-deploy up`")
        listed = written_workers(deployment)
        found, problems = proven(deployment, plan, listed, without)
        here = (worker for worker in listed if not is_foreign(worker))
        Routes(deployment, router.state).only((*here, *found))
        # an interrupted call may have taken it from the list, and its requests continue
        for worker in {one.id: one for one in (*foreign_of(plan), *listed) if one.id in without}.values():
            _drain(deployment, plan, worker, reporter)
    asked = {worker.id: "as requested" for worker in foreign_of(plan) if worker.id in without}
    left_out = {address: deployment.redact(why) for address, why in {**asked, **problems}.items()}
    return Routed(tuple(worker.id for worker in found), left_out)


def _drain(deployment: Deployment, plan: Plan, worker: RoutedEngine, reporter: Reporter) -> None:
    """Wait for the requests of an engine on another machine."""
    seconds = plan.settings.drain_seconds
    reporter.note(f"{worker.id}: waiting for its requests, at most {seconds} s")
    with foreign_endpoint(deployment, plan, worker, timeout=METRICS_TIMEOUT) as endpoint:
        left = drained(endpoint, seconds)
    if left:
        reporter.note(f"{worker.id}: {left} requests still in progress are cut off")
