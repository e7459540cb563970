"""`export`: the settings of a deployment for programs that serve a model on several machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dflash_deploy.cli.command import command, examples
from dflash_deploy.cli.shown import Report
from dflash_deploy.features.export import SUMMARY

export = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help=SUMMARY,
    epilog=examples("export ray cluster", "export ray cluster --replicas 1-4"),
)


@export.callback()
def _group() -> None:
    """Without a callback, Typer would leave out the name of a single command."""


@export.command("ray")
@command(changes=True, examples=("export ray cluster", "export ray cluster --replicas 1-4"))
def export_ray(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="Directory for the files; created if it is missing.")],
    replicas: Annotated[
        str, typer.Option(metavar="N|N-M", help="Copies of this deployment; N-M follows the number of requests.")
    ] = "2",
    *,
    directory: Path,
) -> Report:
    """Write serve.yaml, rayservice.yaml (Kubernetes), ray.env and README.md for Ray Serve, with these settings.

    The settings must have answered here: run `up` first. No file contains a key.
    """
    from dflash_deploy.features.export.ray import export_to

    done = export_to(directory, out, replicas)
    lines = (f"wrote    {', '.join(done.files)} in {done.directory}", f"         {done.engine}")
    return Report(done, (*lines, f"next     read {done.directory}/README.md: what to run, and where"))
