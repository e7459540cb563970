"""`fleet route`: which engines of other machines get requests from the router of this one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.deployment import Deployment, locked
from dflash_deploy.deployment.router_files import written_workers
from dflash_deploy.errors import EngineNotReady, NotPossible
from dflash_deploy.fleet.remote import NO_ROUTER
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.plan import Plan
from dflash_deploy.planning import plan_of
from dflash_deploy.runtime.select import several_runtime
from dflash_deploy.serve.router.files import RoutedEngine
from dflash_deploy.serve.settings import Settings
from dflash_deploy.startup.foreign import foreign_endpoint, foreign_of, is_foreign, proven
from dflash_deploy.startup.rolling import METRICS_TIMEOUT, Routes, drained


@dataclass(frozen=True)
class Routed:
    """The addresses of the engines that get requests, and why others do not."""

    engines: tuple[str, ...]
    left_out: Mapping[str, str]

    def document(self) -> dict[str, object]:
        """The `data` of `fleet route --json`."""
        return {"engines": list(self.engines), "left_out": dict(self.left_out)}


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
