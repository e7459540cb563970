"""`logs`: what the engine wrote, secrets redacted, or a bundle of all that a report needs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from dflash_deploy.cli.command import command
from dflash_deploy.cli.options import HERE, Directory, Replica
from dflash_deploy.cli.shown import Report, visible
from dflash_deploy.cli.streams import lost_output
from dflash_deploy.errors import BadInput


@command(examples=("logs --follow", "logs --bundle report.tar.gz"))
def logs(
    file: Annotated[
        Path | None, typer.Argument(help="With --bundle: the file to write; else one in the current directory.")
    ] = None,
    directory: Directory = HERE,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines until Ctrl-C or the engine's end.")
    ] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", min=0, help="Only the last N lines, of each process.")
    ] = None,
    replica: Replica = None,
    bundle: Annotated[
        bool,
        typer.Option("--bundle", help="Pack log, plan, doctor, settings, versions as tar.gz (0600), without secrets."),
    ] = False,
) -> Report:
    """Print the engine's log, or pack a bundle for a report. Secrets are redacted."""
    if bundle:
        from dflash_deploy.operations.bundle import bundle as run_bundle

        packed = run_bundle(directory, file)
        shown = (
            f"bundle    {packed.file}",
            f"holds     {', '.join(packed.members)}",
            "secrets   replaced; still, read it before you give it to others",
        )
        return Report(shown=shown)
    if file is not None:
        raise BadInput(f"`{file}`: a file goes with --bundle", hint=f"dflash-deploy logs --bundle {file}")
    if follow:
        # Ctrl-C is how following ends
        with suppress(KeyboardInterrupt):
            _print(directory, replica, tail, follow=True)
    else:
        _print(directory, replica, tail, follow=False)
    return Report()


def _print(directory: Path, replica: int | None, tail: int | None, *, follow: bool) -> None:
    from dflash_deploy.operations.logs import log

    for line in log(directory, replica=replica, tail=tail, follow=follow):
        typer.echo(visible(line))
        if lost_output() is not None:
            return
