"""`monitor`: metrics, rules, alerts and dashboards of a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.command import command, examples, terminal
from dflash_deploy.cli.options import DAY, HERE, Directory, Json, seconds_of
from dflash_deploy.cli.shown import Report
from dflash_deploy.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dflash_deploy.features.monitoring.api import AlertSilence
    from dflash_deploy.features.monitoring.operations import MonitoringState


monitor = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Metrics and alerts: up, down, status, test, silence, export.",
    epilog=examples("monitor up", "monitor export ./monitoring"),
)

Every = Annotated[int, typer.Option(min=1, max=60, help="Seconds between two readings of /metrics.")]

LONGEST_SILENCE = 30 * DAY
"""Seconds."""


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

    stopped = stop_monitoring(directory)
    return Report({"stopped": stopped}, ("stopped" if stopped else "nothing runs",))


@command(examples=("monitor status", "monitor status --json"))
def monitor_status(directory: Directory = HERE, as_json: Json = False) -> Report:
    """Show what runs, whether each engine is read, and which alerts fire."""
    from dflash_deploy.features.monitoring.operations import monitoring_state

    state = monitoring_state(directory)
    return Report(state.document(), _shown(state))


@command(examples=("monitor test", "monitor test --json"))
def monitor_test(directory: Directory = HERE, as_json: Json = False) -> Report:
    """Send one alert to every receiver, and wait until all have accepted it."""
    from dflash_deploy.features.monitoring.operations import send_test_alert

    seconds = send_test_alert(directory)
    return Report({"seconds": round(seconds, 1)}, (f"delivered    every receiver accepted it after {seconds:.0f} s",))


@command(
    changes=True, examples=("monitor silence --for 2h", "monitor silence EngineDown --for 1d --comment 'new disk'")
)
def monitor_silence(
    alerts: Annotated[
        list[str] | None, typer.Argument(metavar="[ALERT]...", help="Names of alerts; all if left out.")
    ] = None,
    directory: Directory = HERE,
    lasts: Annotated[
        str | None, typer.Option("--for", metavar="DURATION", help="How long, such as 30m, 2h or 1d.")
    ] = None,
    comment: Annotated[str, typer.Option(help="Why, for others who read it.")] = "",
    end: Annotated[bool, typer.Option("--end", help="End all silences of this deployment.")] = False,
    as_json: Json = False,
) -> Report:
    """Send no alerts of this deployment for a while; without --for, list what is silenced."""
    from dflash_deploy.features.monitoring.silences import end_silences, list_silences, silence_alerts

    if end and (lasts or alerts):
        raise BadInput("--end ends all silences", hint="leave out --for and the names of alerts")
    if alerts and not lasts:
        raise BadInput("a silence needs a duration", hint="such as --for 2h")
    if end:
        found = end_silences(directory)
        return Report(found.document(), (f"ended        {found.ended}", *_silenced(found.silences)))
    if not lasts:
        found = list_silences(directory)
    else:
        seconds = seconds_of("--for", lasts, most=LONGEST_SILENCE)
        found = silence_alerts(directory, alerts=alerts or (), seconds=seconds, comment=comment)
    return Report(found.document(), tuple(_silenced(found.silences)) or ("silenced     nothing",))


def _silenced(silences: Sequence[AlertSilence]) -> Iterator[str]:
    for one in silences:
        what = ", ".join(one.alerts) or "all alerts"
        yield f"silenced     until {one.ends:%Y-%m-%d %H:%M:%S} UTC: {what} ({one.comment})"


def _shown(state: MonitoringState) -> tuple[str, ...]:
    if not state.prometheus:
        return ("prometheus   does not run; start it with `dflash-deploy monitor up`",)
    to = ", ".join(state.receivers) or "no receiver: name one in .dflash/monitor/alertmanager/alertmanager.yml"
    sender = f"http://{state.alertmanager}, to {to}" if state.alertmanager else "does not run: no alert is sent"
    panels = f"http://{state.grafana}, user admin, password in .dflash/monitor/grafana.password"
    targets = (
        f"{one.kind:<12} {one.address}: {one.health}{f', {one.problem}' if one.problem else ''}"
        for one in state.targets
    )
    firing = ", ".join(state.firing) or "none"
    return (
        f"prometheus   http://{state.prometheus}",
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
monitor.command("silence")(monitor_silence)
monitor.command("export")(monitor_export)
