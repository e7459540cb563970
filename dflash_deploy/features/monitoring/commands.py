"""`monitor`: metrics, rules, alerts and dashboards of a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dflash_deploy.cli.command import command, examples, terminal
from dflash_deploy.cli.shown import Report
from dflash_deploy.features.monitoring import SUMMARY

monitor = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help=SUMMARY, epilog=examples("monitor up", "monitor down")
)
Every = Annotated[int, typer.Option(min=1, max=60, help="Seconds between two readings of /metrics.")]


@monitor.command("up")
@command(changes=True, examples=("monitor up", "monitor up --every 5"))
def monitor_up(every: Every = 15, *, directory: Path) -> Report:
    """Start Prometheus, Alertmanager and Grafana for this deployment with Docker Compose, on 127.0.0.1 only.

    Receivers of alerts are in .dflash/monitor/alertmanager/alertmanager.yml, ports in .dflash/monitor/.env: edit them,
    then run the command again.
    """
    from dflash_deploy.features.monitoring.operations import start_monitoring

    urls = start_monitoring(directory, interval=every, reporter=terminal()).document()
    notes = {"grafana": ", user admin, password in .dflash/monitor/grafana.password"}
    return Report(urls, tuple(f"{name:<12} {url}{notes.get(name, '')}" for name, url in urls.items()))


@monitor.command("down")
@command(changes=True, examples=("monitor down", "monitor down --json"))
def monitor_down(*, directory: Path) -> Report:
    """Stop Prometheus, Alertmanager and Grafana. Their data stays in .dflash/monitor."""
    from dflash_deploy.features.monitoring.operations import stop_monitoring

    done = stop_monitoring(directory)
    return Report(done.document(), ("stopped" if done.stopped else "nothing runs",))
