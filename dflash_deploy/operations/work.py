"""The work of a command on an engine: a failure gets its line in the journal, and features take part in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.journal import record
from dflash_deploy.errors import DeployError, RolledBack
from dflash_deploy.operations.reporter import Reporter
from dflash_deploy.registry import features

WORK, MEASURING = timedelta(hours=2), timedelta(hours=12)
"""The longest time of a command that starts the engine, and of one that measures."""


@contextmanager
def engine_work(deployment: Deployment, command: str, reporter: Reporter, most: timedelta = WORK) -> Iterator[None]:
    """`recorded_work` and `accompanied_work` for the same block."""
    with recorded_work(deployment, command), accompanied_work(deployment, command, reporter, most):
        yield


@contextmanager
def recorded_work(deployment: Deployment, command: str) -> Iterator[None]:
    """Write a failure of the block into the journal."""
    try:
        yield
    except BaseException as problem:
        record(deployment, "rolled-back" if isinstance(problem, RolledBack) else "failed", command, _said(problem))
        raise


@contextmanager
def accompanied_work(
    deployment: Deployment, command: str, reporter: Reporter, most: timedelta = WORK
) -> Iterator[None]:
    """Let each feature surround the block, such as with a silence of the alerts that a restart causes."""
    with ExitStack() as stack:
        for feature in features():
            if feature.around:
                stack.enter_context(feature.around(deployment, command, reporter.note, most))
        yield


def _said(problem: BaseException) -> str:
    if isinstance(problem, DeployError):
        return problem.message
    if isinstance(problem, KeyboardInterrupt | SystemExit):
        return "interrupted"
    return f"{type(problem).__name__}: {problem}"
