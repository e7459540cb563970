"""`monitor`: metrics, rules, alerts and dashboards of a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy import operations
from dflash_deploy.cli.command import command, terminal
from dflash_deploy.cli.options import HERE, Directory, Json
from dflash_deploy.cli.shown import Report

if TYPE_CHECKING:
    from dflash_deploy.operations import MonitoringState

monitor = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Metrics, alerts and dashboards: up, down, status, test, export.",
)


@command
def monitor_up(
    directory: Directory = HERE,
    webhook: Annotated[
        str | None, typer.Option(help="Send alerts to this URL, through Alertmanager.", show_default=False)
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of Prometheus on 127.0.0.1.")] = 9090,
    alert_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of Alertmanager on 127.0.0.1.")] = 9093,
    every: Annotated[int, typer.Option(min=1, max=60, help="Seconds between two readings of /metrics.")] = 15,
    as_json: Json = False,
) -> Report:
    """Start Prometheus for this deployment, on 127.0.0.1 only; with --webhook also Alertmanager."""
    state = operations.start_monitoring(
        directory, webhook=webhook, port=port, alert_port=alert_port, interval=every, reporter=terminal()
    )
    return Report(state.document(), (*_shown(state), "next         dflash-deploy monitor status"))


@command
def monitor_down(directory: Directory = HERE, as_json: Json = False) -> Report:
    """Stop Prometheus and Alertmanager. Their data stays in .dflash/monitor."""
    stopped = operations.stop_monitoring(directory)
    return Report({"stopped": stopped}, ("stopped" if stopped else "nothing runs",))


@command
def monitor_status(directory: Directory = HERE, as_json: Json = False) -> Report:
    """Show what runs, whether each engine is read, and which alerts fire."""
    state = operations.monitoring_state(directory)
    return Report(state.document(), _shown(state))


@command
def monitor_test(directory: Directory = HERE, as_json: Json = False) -> Report:
    """Send one alert to the receiver, and wait until it has accepted it."""
    seconds = operations.send_test_alert(directory)
    return Report({"seconds": round(seconds, 1)}, (f"delivered    the receiver accepted it after {seconds:.0f} s",))


def _shown(state: MonitoringState) -> tuple[str, ...]:
    if not state.prometheus:
        return ("prometheus   does not run; start it with `dflash-deploy monitor up`",)
    sender = f"http://{state.alertmanager}" if state.alertmanager else "does not run: alerts are sent to no receiver"
    targets = (
        f"engine       {one.address}: {one.health}{f', {one.problem}' if one.problem else ''}" for one in state.targets
    )
    firing = ", ".join(state.firing) or "none"
    return (f"prometheus   http://{state.prometheus}", f"alertmanager {sender}", *targets, f"firing       {firing}")


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


monitor.command("up")(monitor_up)
monitor.command("down")(monitor_down)
monitor.command("status")(monitor_status)
monitor.command("test")(monitor_test)
monitor.command("export")(monitor_export)
