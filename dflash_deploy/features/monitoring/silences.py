"""The silence that a command sets in Alertmanager for the alerts that its own restart of the engine causes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import httpx

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import RolledBack
from dflash_deploy.features.monitoring.api import MonitoringApi
from dflash_deploy.features.monitoring.operations import ALERTMANAGER, address_of
from dflash_deploy.features.monitoring.rules import DEPLOYMENT, REPLICA, RESTART_LOOP, RESTART_WINDOW, alerts
from dflash_deploy.intake.parse import Invalid
from dflash_deploy.operations.work import WORK

SETTLING = timedelta(seconds=150)
"""How long the silence of a command outlasts it: Prometheus reads the engine again within a minute."""

BY_COMMAND, AFTER_MEASURING = "dflash-deploy", "dflash-deploy, after many restarts"
"""Who made a silence, as Alertmanager shows it. Each command ends those of the first kind that others left."""


@contextmanager
def silenced(
    deployment: Deployment, command: str, note: Callable[[str], None], most: timedelta = WORK
) -> Iterator[None]:
    """Silence the alerts that a restart causes while the block runs, if Alertmanager runs.

    Of one of several engines these are its own alerts: the others answer, and their alerts are sent. The silence ends
    with a failure of the block, so that its alerts are sent. After a success, or back with the last working settings,
    it lasts SETTLING longer. A command that measures restarts the engine often: RestartLoop stays silent for as long as
    it counts those restarts. The silence of a killed command ends with the next command, at the latest after `most`. An
    Alertmanager that does not answer stops no command.
    """
    address = address_of(deployment, ALERTMANAGER)
    if not address or not _set(address, deployment, command, most, note):
        yield
        return
    longer = timedelta()
    try:
        yield
        longer = SETTLING
    except RolledBack:
        longer = SETTLING
        raise
    finally:
        _set(address, deployment, command, longer, note, measured=most > WORK)


def _set(
    address: str,
    deployment: Deployment,
    command: str,
    lasts: timedelta,
    note: Callable[[str], None],
    *,
    measured: bool = False,
) -> bool:
    """Replace the silences of commands by one that lasts this long, if at all; return whether Alertmanager answered."""
    name = deployment.project_name
    one = "the engine" if deployment.member is None else f"engine {deployment.member}"
    comment = f"`{command}` restarts {one}"
    try:
        with MonitoringApi(address) as api:
            api.end_silences({DEPLOYMENT: name}, BY_COMMAND)
            if lasts:
                api.silence(caused_by_restart(deployment), lasts, BY_COMMAND, comment)
            if measured:
                loop = {DEPLOYMENT: name, "alertname": RESTART_LOOP}
                api.silence(loop, RESTART_WINDOW + SETTLING, AFTER_MEASURING, comment)
    except (httpx.HTTPError, Invalid) as problem:
        note(f"Alertmanager does not answer, so alerts are not silenced: {problem}")
        return False
    return True


def caused_by_restart(deployment: Deployment) -> dict[str, str]:
    """The labels of an alert that a restart of the deployment, or of one of its engines, causes; as patterns."""
    caused = [alert for alert in alerts() if alert.by_restart]
    if deployment.member is None:
        return {DEPLOYMENT: deployment.project_name, "alertname": "|".join(alert.name for alert in caused)}
    # the others have no label with the number of an engine
    own = "|".join(alert.name for alert in caused if not alert.needs)
    return {DEPLOYMENT: deployment.project_name, "alertname": own, REPLICA: str(deployment.member)}
