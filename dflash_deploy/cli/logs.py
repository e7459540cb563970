"""`logs`: what the engine wrote, secrets redacted."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.planned import plan_to_stop
from dflash_deploy.cli.report import HERE, Directory, Report, verb

if TYPE_CHECKING:
    from dflash_deploy.runtime import Runtime

POLL = 0.5


@verb
def logs(
    directory: Directory = HERE,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C or the engine's end.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, help="Only the last N lines.")] = None,
) -> Report:
    """Print the engine's log."""
    from dflash_deploy.project import Deployment
    from dflash_deploy.runtime import runtime_for

    deployment = Deployment.existing(directory, check=False)
    runtime = runtime_for(deployment, plan_to_stop(deployment))
    page = runtime.read_log()
    first = page.lines if tail is None else page.lines[len(page.lines) - tail :] if tail else ()
    for line in first:
        typer.echo(line)
    if follow:
        # Ctrl-C is how following ends
        with suppress(KeyboardInterrupt):
            _follow(runtime, page.cursor)
    return Report()


def _follow(runtime: Runtime, cursor: str) -> None:
    """Print what is written, until the engine has ended."""
    alive = True
    while alive:
        time.sleep(POLL)
        alive = runtime.state().phase in {"running", "restarting", "paused"}
        page = runtime.read_log(cursor)
        cursor = page.cursor
        for line in page.lines:
            typer.echo(line)
