"""`monitor`: metrics, rules, alerts and dashboards of a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.command import command, examples, terminal
from dflash_deploy.cli.options import HERE, Directory, Json
from dflash_deploy.cli.shown import Report

if TYPE_CHECKING:
    from dflash_deploy.features.monitoring.operations import MonitoringState


monitor = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Metrics and alerts: up, down, status, test, export.",
    epilog=examples("monitor up", "monitor export ./monitoring"),
)

Every = Annotated[int, typer.Option(min=1, max=60, help="Seconds between two readings of /metrics.")]


@command(changes=True, examples=("monitor up", "monitor up --every 5"))
def monitor_up(directory: Directory = HERE, every: Every = 15, as_json: Json = False) -> Report:
    """Start Prometheus, Alertmanager and Grafana for this deployment with Docker Compose, on 127.0.0.1 only.

    Receivers of alerts are in .dflash/monitor/alertmanager/alertmanager.yml, ports in .dflash/monitor/.env: edit them,
    then run the command again.
    """
    from dflash_deploy.features.monitoring.operations import start_monitoring

    state = start_monitoring(directory, interval=every, reporter=terminal())
    return Report(state.document(), (*_shown(state), "next         dflash-deploy monitor status"))


@command(changes=True, examples=("monitor down", "monitor down --json"))
def monitor_down(directory: Directory = HERE, as_json: Json = False) -> Report:
    """Stop Prometheus, Alertmanager and Grafana. Their data stays in .dflash/monitor."""
    from dflash_deploy.features.monitoring.operations import stop_monitoring

    done = stop_monitoring(directory)
    return Report(done.document(), ("stopped" if done.stopped else "nothing runs",))


@command(examples=("monitor status", "monitor status --json"))
def monitor_status(directory: Directory = HERE, as_json: Json = False) -> Report:
    """Show what runs, whether each engine is read, and which alerts fire."""
    from dflash_deploy.features.monitoring.operations import monitoring_state

    state = monitoring_state(directory)
    return Report(state.document(), _shown(state))


@command(examples=("monitor test", "monitor test --json"))
def monitor_test(directory: Directory = HERE, as_json: Json = False) -> Report:
    """Send one alert through Alertmanager to its receivers."""
    from dflash_deploy.features.monitoring.operations import send_test_alert

    sent = send_test_alert(directory)
    said = f"sent         MonitorTest to {', '.join(sent.receivers)}: it is there within seconds"
    return Report(sent.document(), (said,))


def _shown(state: MonitoringState) -> tuple[str, ...]:
    if not state.prometheus:
        return ("prometheus   does not run; start it with `dflash-deploy monitor up`",)
    to = ", ".join(state.receivers) or "no receiver: name one in .dflash/monitor/alertmanager/alertmanager.yml"
    sender = f"{state.alertmanager}, to {to}" if state.alertmanager else "does not run: no alert is sent"
    panels = f"{state.grafana}, user admin, password in .dflash/monitor/grafana.password"
    targets = (
        f"{one.kind:<12} {one.address}: {one.health}{f', {one.problem}' if one.problem else ''}"
        for one in state.targets
    )
    firing = ", ".join(state.firing) or "none"
    return (
        f"prometheus   {state.prometheus}",
        f"alertmanager {sender}",
        f"grafana      {panels if state.grafana else 'does not run'}",
        *targets,
        f"firing       {firing}",
    )


@command(changes=True, examples=("monitor export ./monitoring", "monitor export ./monitoring --every 5"))
def monitor_export(
    out: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where to write the files; it is created.", file_okay=False)
    ],
    directory: Directory = HERE,
    every: Every = 15,
    as_json: Json = False,
) -> Report:
    """Write scrape jobs, rules, alerts and dashboards as a Compose project, with a key that opens only /metrics."""
    from dflash_deploy.features.monitoring.operations import export_monitoring

    done = export_monitoring(directory, out, interval=every, reporter=terminal())
    added = "added" if done.key_added else "exists already"
    shown = (
        f"wrote        {done.directory}: {', '.join(done.files)}",
        f"key          prometheus, opens only GET /metrics, {added}",
        f"scrapes      {', '.join(done.targets)}, every {every} s",
        f"next         docker compose --project-directory {done.directory} up -d",
    )
    return Report(done.document(), shown)


monitor.command("up")(monitor_up)
monitor.command("down")(monitor_down)
monitor.command("status")(monitor_status)
monitor.command("test")(monitor_test)
monitor.command("export")(monitor_export)
