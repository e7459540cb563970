"""`run`: a deployment in the foreground, for systemd, supervisors and llama-swap."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dflash_deploy.client.answers import EndpointError
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import EngineNotReady, NoDeployment, PreflightRefused, RolledBack
from dflash_deploy.operations.down import stop
from dflash_deploy.operations.logs import log
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.operations.up import start
from dflash_deploy.planning import plan_of
from dflash_deploy.runtime.select import runtime_for
from dflash_deploy.startup import PATIENCE
from dflash_deploy.startup.engine import endpoint_of
from dflash_deploy.startup.restore import ended_by_interrupts

# Seconds that requests in progress get before the engine is stopped, which breaks off those that are left.
FINISH = 45.0


def run(
    directory: Path, show: Callable[[str], object], *, patience: float = PATIENCE, reporter: Reporter = SILENT
) -> None:
    """Start a deployment, and give `show` each line of its log until SIGTERM or Ctrl-C.

    It is stopped then, after the requests in progress; a second signal does not wait for them. Raises what `up.start`
    raises, EngineNotReady if the engine ends by itself, and PreflightRefused if the directory may not be mounted yet.
    """
    _check_mounted(directory)
    try:
        with ended_by_interrupts():
            try:
                start(directory, patience=patience, reporter=reporter)
                reporter.note("it answers; its log follows, until SIGTERM or Ctrl-C stops it")
            except RolledBack as problem:
                reporter.note(problem.message)
            for line in log(directory, tail=0, follow=True):
                show(line)
    except KeyboardInterrupt:
        with suppress(KeyboardInterrupt), ended_by_interrupts():
            _finish(directory, reporter)
        stop(directory, reporter=reporter)
        return
    deployment = Deployment.existing(directory)
    ended = runtime_for(deployment, plan_of(deployment)).state()
    raise EngineNotReady(
        f"the engine ended with exit code {ended.exit_code}" if ended.exit_code is not None else "the engine ended",
        hint=f"`dflash-deploy status{deployment.option}` says why",
    )


def _check_mounted(directory: Path) -> None:
    """Raise PreflightRefused, which may pass, if the directory is empty or missing, as before its disk is mounted."""
    try:
        Deployment.existing(directory, check=False)
    except NoDeployment as problem:
        if directory.is_dir() and any(directory.iterdir()):
            raise
        later = f"if its disk is mounted later, add `RequiresMountsFor={directory.absolute()}` to the unit of systemd"
        raise PreflightRefused(problem.message, hint=f"{later}; else {problem.hint}") from None


def _finish(directory: Path, reporter: Reporter) -> None:
    """Wait until no request is in flight, at most FINISH seconds."""
    deployment = Deployment.existing(directory)
    plan = plan_of(deployment)
    if runtime_for(deployment, plan).state().phase != "running":
        return
    reporter.note(f"waiting for requests in progress, at most {FINISH:.0f} s")
    until = time.monotonic() + FINISH
    with suppress(EndpointError), endpoint_of(deployment, plan, timeout=5.0) as endpoint:
        while sum(used.in_flight for used in endpoint.key_usage()) and time.monotonic() < until:
            time.sleep(0.25)
