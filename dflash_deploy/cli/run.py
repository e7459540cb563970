"""`run`: the deployment in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from dflash_deploy.cli.command import command, terminal
from dflash_deploy.cli.options import HERE, Directory, Patience
from dflash_deploy.cli.shown import Report, visible
from dflash_deploy.errors import BadInput
from dflash_deploy.startup import PATIENCE


@command(changes=True, examples=("run --as systemd", "run --as llama-swap --dir coder vision chat"))
def run(
    others: Annotated[
        list[Path] | None, typer.Argument(help="With --as llama-swap: further deployments.", show_default=False)
    ] = None,
    directory: Directory = HERE,
    patience: Patience = PATIENCE,
    supervisor: Annotated[
        Literal["systemd", "llama-swap"] | None,
        typer.Option("--as", help="Print what starts this command instead: a unit, or a configuration."),
    ] = None,
) -> Report:
    """Start the deployment and stay in the foreground. Its log is shown until SIGTERM or Ctrl-C stops it.

    The command waits for requests in progress first, at most DRAIN_SECONDS; a second signal does not.
    """
    if others and supervisor != "llama-swap":
        raise BadInput("only --as llama-swap takes further deployments", hint="name one with --dir")
    if supervisor is not None:
        from dflash_deploy.operations.supervised import llama_swap, systemd_unit

        text = systemd_unit(directory) if supervisor == "systemd" else llama_swap([directory, *(others or ())])
        typer.echo(visible(text.rstrip()))
        return Report()
    from dflash_deploy.operations.run import run as run_in_foreground

    run_in_foreground(directory, lambda line: typer.echo(visible(line)), patience=patience, reporter=terminal())
    return Report(shown=("stopped; weights and settings stay",))
