"""`monitor`: metrics, rules, alerts and dashboards of a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dflash_deploy import operations
from dflash_deploy.cli.command import command
from dflash_deploy.cli.options import HERE, Directory, Json
from dflash_deploy.cli.shown import Report

monitor = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Metrics, rules, alerts and dashboards: export.",
)


@monitor.callback()
def _monitor() -> None:
    """Metrics, rules, alerts and dashboards: export."""


@command
def monitor_export(
    out: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where to write the files; it is created.", file_okay=False)
    ],
    directory: Directory = HERE,
    every: Annotated[int, typer.Option(min=1, max=60, help="Seconds between two readings of /metrics.")] = 15,
    node: Annotated[
        list[str] | None, typer.Option(help="Address (HOST:PORT) of a node exporter; may be repeated.")
    ] = None,
    gpu: Annotated[
        list[str] | None, typer.Option(help="Address (HOST:PORT) of a DCGM exporter; may be repeated.")
    ] = None,
    as_json: Json = False,
) -> Report:
    """Write scrape job, rules, alerts and dashboards for your Prometheus, with a key that opens only /metrics."""
    done = operations.export_monitoring(directory, out, interval=every, nodes=node or (), gpus=gpu or ())
    added = "added" if done.key_added else "exists already"
    shown = (
        f"wrote        {done.directory}: {', '.join(done.files)}",
        f"key          prometheus, opens only GET /metrics, {added}",
        f"scrapes      {', '.join(done.targets)}, every {every} s",
        f"next         promtool check config {done.directory}/prometheus.yml",
    )
    return Report(done.document(), shown)


monitor.command("export")(monitor_export)
