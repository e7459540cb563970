"""`logs`: what the engine wrote, secrets redacted."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from dflash_deploy.cli.planned import plan_of
from dflash_deploy.cli.report import HERE, Directory, Report, verb

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

    deployment = Deployment.existing(directory)
    runtime = runtime_for(deployment, plan_of(deployment))
    page = runtime.read_log()
    first = page.lines if tail is None else page.lines[len(page.lines) - tail :] if tail else ()
    for line in first:
        typer.echo(line)
    while follow:
        alive = runtime.state().phase in {"running", "restarting", "paused"}
        page = runtime.read_log(page.cursor)
        for line in page.lines:
            typer.echo(line)
        if not alive:
            break
        time.sleep(POLL)
    return Report()
