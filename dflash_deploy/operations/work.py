"""The work of a command on an engine: a failure gets its line in the journal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.journal import record
from dflash_deploy.errors import DeployError, RolledBack


@contextmanager
def engine_work(deployment: Deployment, command: str) -> Iterator[None]:
    """Write a failure of the block into the journal."""
    try:
        yield
    except BaseException as problem:
        record(deployment, "rolled-back" if isinstance(problem, RolledBack) else "failed", command, _said(problem))
        raise


def _said(problem: BaseException) -> str:
    if isinstance(problem, DeployError):
        return problem.message
    if isinstance(problem, KeyboardInterrupt | SystemExit):
        return "interrupted"
    return f"{type(problem).__name__}: {problem}"
