"""Settings that change for a start and return: safe fixes, the last working ones, and others for a while.

`up --fix` applies the safe fix of a diagnosis to this deployment's `.env`. A start that fails restores the last working
settings. A deployment that ran with other settings for a while gets its own again, also after errors.
"""

from __future__ import annotations

import difflib
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import FrameType

from dflash_deploy.deployment.directory import Deployment, changes, last_good, mark_restored
from dflash_deploy.errors import DeployError, EngineNotReady, RolledBack
from dflash_deploy.intake.files import read_text
from dflash_deploy.plan.result import Plan
from dflash_deploy.plan.sizes import budget_of
from dflash_deploy.runtime.protocol import Runtime
from dflash_deploy.runtime.select import runtime_for
from dflash_deploy.startup.progress import Display, ShowProgress, Step, Timekeeper
from dflash_deploy.startup.start import bring_up

HALF = "half"
ENOUGH = "enough"


def fix_changes(fix: Mapping[str, str], plan: Plan) -> dict[str, str]:
    """Return the settings of a fix that differ from the plan's; empty if it is already applied or cannot be applied.

    `half` and `enough` are resolved to numbers. A size that is left to the engine cannot be halved.
    """
    wanted = {name: _resolved(name, value, plan) for name, value in fix.items()}
    return {name: value for name, value in wanted.items() if value is not None and value != plan.values.get(name, "")}


def apply_fix(deployment: Deployment, changes: Mapping[str, str]) -> tuple[Deployment, tuple[str, ...]]:
    """Write the settings to `.env`; return the changed deployment and the diff, with secrets redacted."""
    before = _lines(deployment)
    changed = deployment.with_values(changes)
    compared = difflib.unified_diff(before, _lines(changed), ".env.last", ".env", n=0, lineterm="")
    return changed, tuple(map(deployment.redact, (line for line in compared if not line.startswith("@@"))))


def _lines(deployment: Deployment) -> list[str]:
    return read_text(deployment.env_file).splitlines()


def _resolved(name: str, value: str, plan: Plan) -> str | None:
    if value == HALF:
        size = plan.settings.typed.get(name)
        return str(size // 2) if isinstance(size, int) and size > 1 else None
    if value == ENOUGH:
        sequences = plan.settings.max_num_seqs
        return None if sequences is None else str(budget_of(plan.settings, sequences))
    return value


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


@contextmanager
def temporary_settings(
    deployment: Deployment, plan: Plan, *, patience: float, display: Display
) -> Iterator[Callable[[Plan], None]]:
    """Let the block restart the engine with other plans. `plan` is the plan of `.env`, which is never written.

    After the block, the engine runs `plan` again and has answered. After an error or Ctrl-C it is started with `plan`
    without waiting for an answer; a second Ctrl-C cannot prevent that. So the engine never keeps temporary settings.
    Raises EngineNotReady and PreflightRefused as `up` does.
    """

    def restart_with(other: Plan) -> None:
        with display() as show:
            bring_up(deployment, other, runtime_for(deployment, other), patience=patience, show=show)

    with ended_by_interrupts():
        try:
            yield restart_with
            restart_with(plan)
        except BaseException:
            with _undisturbed(), display() as show:
                tell = partial(Timekeeper(show).tell, Step("restoring the settings of .env"))
                runtime_for(deployment, plan).start(tell)
            raise


@contextmanager
def ended_by_interrupts() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP, as sent by `kill` and a closing terminal, into KeyboardInterrupt in the block."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled(interrupt, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore Ctrl-C, SIGTERM and SIGHUP in this process while the block runs."""

    def wait(number: int, frame: FrameType | None) -> None:
        # not SIG_IGN: the engine started in the block would inherit it
        return

    with _handled(wait, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None], *numbers: signal.Signals) -> Iterator[None]:
    """Handle these signals, except those that this process was started to ignore, as under nohup."""
    before = {number: signal.getsignal(number) for number in numbers}
    heeded = {number: known for number, known in before.items() if known is not signal.SIG_IGN}
    for number in heeded:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, known in heeded.items():
            signal.signal(number, known)
