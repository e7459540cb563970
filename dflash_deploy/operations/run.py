"""`run`: a deployment in the foreground, for systemd, supervisors and llama-swap."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import EngineNotReady, RolledBack
from dflash_deploy.operations.down import stop
from dflash_deploy.operations.logs import log
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.operations.up import start
from dflash_deploy.planning import plan_of
from dflash_deploy.runtime.select import runtime_for
from dflash_deploy.startup import PATIENCE
from dflash_deploy.startup.engine import endpoint_of
from dflash_deploy.startup.restore import ended_by_interrupts
from dflash_deploy.startup.rolling import METRICS_TIMEOUT, drained


def run(
    directory: Path, show: Callable[[str], object], *, patience: float = PATIENCE, reporter: Reporter = SILENT
) -> None:
    """Start a deployment, and give `show` each line of its log until SIGTERM or Ctrl-C.

    It is stopped then, after the requests in progress; a second signal does not wait for them. Raises what `up.start`
    raises, and EngineNotReady if the engine ends by itself.
    """
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
            _drain(directory, reporter)
        stop(directory, reporter=reporter)
        return
    deployment = Deployment.existing(directory)
    ended = runtime_for(deployment, plan_of(deployment)).state()
    raise EngineNotReady(
        f"the engine ended with exit code {ended.exit_code}" if ended.exit_code is not None else "the engine ended",
        hint=f"`dflash-deploy status{deployment.option}` says why",
    )


def _drain(directory: Path, reporter: Reporter) -> None:
    """Wait until no request is in flight, at most DRAIN_SECONDS."""
    deployment = Deployment.existing(directory)
    plan = plan_of(deployment)
    if plan.settings.several_engines or runtime_for(deployment, plan).state().phase != "running":
        # only the engines know their requests, not their router
        return
    seconds = plan.settings.drain_seconds
    reporter.note(f"waiting for requests in progress, at most {seconds} s")
    with endpoint_of(deployment, plan, timeout=METRICS_TIMEOUT) as endpoint:
        if left := drained(endpoint, seconds):
            reporter.note(f"{left} requests still in progress are cut off")
