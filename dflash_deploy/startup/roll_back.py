"""Restore the last working settings when a start fails."""

from __future__ import annotations

from collections.abc import Callable

from dflash_deploy.deployment import Deployment
from dflash_deploy.deployment.last_good import changes, last_good, mark_restored
from dflash_deploy.errors import DeployError, EngineNotReady, RolledBack
from dflash_deploy.plan import Plan
from dflash_deploy.runtime import Runtime
from dflash_deploy.startup.bring_up import bring_up
from dflash_deploy.startup.progress import ShowProgress, Step, Timekeeper

PlanOf = Callable[[Deployment], Plan]
RuntimeOf = Callable[[Deployment, Plan], Runtime]


def restore_last_good(
    deployment: Deployment,
    problem: EngineNotReady,
    plan_of: PlanOf,
    runtime_of: RuntimeOf,
    *,
    patience: float,
    show: ShowProgress,
) -> EngineNotReady:
    """Start the last working settings after those of `.env` failed with `problem`.

    Return the error to raise: RolledBack if they run, `problem` if there are none or they fail too.
    """
    good = last_good(deployment)
    if good is None or not changes(deployment):
        return problem
    Timekeeper(show).tell(Step("rolling back"), f"the new settings did not answer: {problem.message}")
    try:
        plan = plan_of(good)
        bring_up(good, plan, runtime_of(good, plan), patience=patience, show=show)
    except DeployError as second:
        problem.hint = f"{problem.hint}; the last working settings do not start either: {second.message}"
        return problem
    mark_restored(deployment, problem.message)
    what = ", ".join(map(str, changes(deployment)))
    return RolledBack(
        f"{problem.message}; the engine runs with the last working settings again",
        hint=f"{problem.hint}; changed since: {what}. `dflash-deploy rollback` restores the working settings in .env",
        detail=problem.detail,
        failure=problem.failure,
        fix=problem.fix,
    )
