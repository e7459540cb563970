"""`logs`: what the engine wrote, secrets redacted, or a bundle of all that a report needs."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.planned import plan_of, plan_to_stop
from dflash_deploy.cli.report import HERE, Directory, Report, verb

if TYPE_CHECKING:
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.plan import Plan
    from dflash_deploy.runtime import Runtime

POLL = 0.5


@verb
def logs(
    file: Annotated[
        Path | None, typer.Argument(help="With --bundle: the file to write; else one in the current directory.")
    ] = None,
    directory: Directory = HERE,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C or the engine's end.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, help="Only the last N lines.")] = None,
    bundle: Annotated[
        bool,
        typer.Option("--bundle", help="Pack log, plan, doctor, settings, versions as tar.gz (0600), without secrets."),
    ] = False,
) -> Report:
    """Print the engine's log, or pack it with all that a report of a failure needs."""
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.errors import BadInput
    from dflash_deploy.runtime import runtime_for

    deployment = Deployment.existing(directory, check=False)
    if bundle:
        return _bundle(deployment, file)
    if file is not None:
        raise BadInput(f"{file}: a file goes with --bundle", hint=f"dflash-deploy logs --bundle {file}")
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


def _bundle(deployment: Deployment, file: Path | None) -> Report:
    from dflash_deploy.cli.bundle import collect, default_name
    from dflash_deploy.deployment.archive import write_archive
    from dflash_deploy.runtime import runtime_for

    place = file or default_name(deployment)
    plan = _plan(deployment)
    members = collect(deployment, plan, runtime_for(deployment, plan))
    write_archive(place, members)
    shown = (
        f"bundle    {place}",
        f"holds     {', '.join(members)}",
        "secrets   replaced; look through it all the same before you give it to others",
    )
    return Report(shown=shown)


def _plan(deployment: Deployment) -> Plan:
    """The plan that knows the engine's version; one to find the engine with, where a slip in `.env` allows no other."""
    from dflash_deploy.errors import DeployError

    try:
        return plan_of(deployment)
    except DeployError:
        return plan_to_stop(deployment)
