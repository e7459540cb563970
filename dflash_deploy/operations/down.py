"""`down`: stop the engine of a deployment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.journal import record
from dflash_deploy.deployment.lock import command_lock
from dflash_deploy.document import Documented
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.plan.result import Plan, RuntimeName
from dflash_deploy.planning import plan_of, plan_to_stop
from dflash_deploy.runtime.select import runtime_for, several_runtime
from dflash_deploy.startup.members import chosen_member


@dataclass(frozen=True)
class Stopped(Documented):
    """What `down` did."""

    stopped: bool
    """Whether an engine was stopped; false if none was running."""
    runtime: RuntimeName
    """What ran the engine: containers (`compose`) or a process on this machine (`native`)."""


def stop(directory: Path, *, replica: int | None = None, reporter: Reporter = SILENT) -> Stopped:
    """Stop and remove the engine; weights, settings and caches stay. Raises NoDeployment, EngineNotReady.

    `replica` stops only that one of several engines, after its requests; the others keep answering. Raises BadInput if
    that engine does not exist.
    """
    deployment = Deployment.existing(directory, check=False)
    plan = plan_to_stop(deployment)
    if replica is not None:
        return _stop_one(deployment, plan_of(deployment), replica, reporter)
    runtime = runtime_for(deployment, plan)
    with command_lock(deployment, "down"):
        reporter.note("stopping the engine")
        return _recorded(deployment, Stopped(runtime.down(), runtime.name), "the engine")


def _stop_one(deployment: Deployment, plan: Plan, number: int, reporter: Reporter) -> Stopped:
    # it asks the engine, and the HTTP client takes 0.1 s
    from dflash_deploy.startup.rolling import Routes, take_out  # noqa: PLC0415

    member = chosen_member(deployment, plan, number)
    router = several_runtime(deployment, plan).router
    with command_lock(deployment, "down"):
        if router.state().phase == "running":
            routes = Routes(deployment, router.state)
            take_out(member, routes, drain_seconds=plan.settings.drain_seconds, note=reporter.note)
        reporter.note(f"stopping {member.name}")
        return _recorded(deployment, Stopped(member.runtime.down(), member.runtime.name), member.name)


def _recorded(deployment: Deployment, done: Stopped, what: str) -> Stopped:
    if done.stopped:
        record(deployment, "stopped", "down", what)
    return done
