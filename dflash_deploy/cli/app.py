"""The verbs, put together."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from dflash_deploy import __version__
from dflash_deploy.cli.bench import bench
from dflash_deploy.cli.connect import connect
from dflash_deploy.cli.doctor import doctor
from dflash_deploy.cli.down import down
from dflash_deploy.cli.image import image
from dflash_deploy.cli.init import init
from dflash_deploy.cli.keys import keys
from dflash_deploy.cli.logs import logs
from dflash_deploy.cli.models import models
from dflash_deploy.cli.plan import plan
from dflash_deploy.cli.profiles import profiles
from dflash_deploy.cli.pull import pull
from dflash_deploy.cli.render import render
from dflash_deploy.cli.rollback import restart, rollback
from dflash_deploy.cli.status import status
from dflash_deploy.cli.test import test
from dflash_deploy.cli.tune import tune
from dflash_deploy.cli.up import up
from dflash_deploy.errors import ExitCode

app = typer.Typer(
    no_args_is_help=True,
    # a traceback with local variables would show the key
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    init,
    plan,
    doctor,
    pull,
    render,
    up,
    restart,
    rollback,
    test,
    bench,
    tune,
    connect,
    status,
    logs,
    down,
):
    app.command()(command)
app.add_typer(profiles, name="profiles")
app.add_typer(models, name="models")
app.add_typer(keys, name="keys")
app.add_typer(image, name="image")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dflash-deploy {__version__}")
        raise typer.Exit


@app.callback()
def _app(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """From a bare GPU box to a proven, fast, closed endpoint: vLLM with DFlash speculative decoding."""


def main() -> None:
    """The entry point of the `dflash-deploy` command."""
    try:
        app()
    except SystemExit as ending:
        if ending.code == ExitCode.INTERRUPTED:
            # where Ctrl-C came while a module was being made by `exec`, as dataclasses are, CPython ends itself with
            # the signal although the interrupt was answered for; the exit code is a promise
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(ExitCode.INTERRUPTED)
        raise
