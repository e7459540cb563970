"""`monitor up`, `down`, `status`, `test` and `export`: Prometheus, Alertmanager and Grafana beside a deployment.

They are a Compose project in the state of the deployment. Their APIs are on 127.0.0.1, at the ports of its `.env`.
A command that restarts the engine silences the alerts that this causes.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from dflash_deploy.deployment import dotenv
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import STATE, check_output, not_written
from dflash_deploy.deployment.lock import command_lock
from dflash_deploy.document import CommandData, Documented
from dflash_deploy.errors import BadInput, EngineMissing, EngineNotReady, NotPossible, PortTaken, RolledBack
from dflash_deploy.features.monitoring import monitoring_folder
from dflash_deploy.features.monitoring.api import LOOK_BACK, MonitoringApi, ScrapedTarget
from dflash_deploy.features.monitoring.project import (
    ALERTMANAGER_FILE,
    COMPOSE_FILE,
    DEPLOYMENT,
    ENV_FILE,
    HOST,
    INTERVAL,
    JOB,
    KEY_FILE,
    KEY_NAME,
    OPTIONAL,
    RESTART_LOOP,
    RESTART_WINDOW,
    RUNBOOK,
    alerts,
    ports_of,
    project_name,
    refuse_files_of_others,
    with_metrics_key,
    write_project,
)
from dflash_deploy.host.ask import container_engine, elsewhere, project_containers
from dflash_deploy.host.ports import listener_on
from dflash_deploy.intake.files import MIB, read_text, shown
from dflash_deploy.intake.parse import Invalid, parse_yaml
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.operations.restarts import refuse_other_ranks
from dflash_deploy.operations.work import WORK
from dflash_deploy.planning import plan_of
from dflash_deploy.registry import Happened

PROMETHEUS, ALERTMANAGER, GRAFANA = "prometheus", "alertmanager", "grafana"
"""Services of the project."""

READY_WITHIN = 120.0
"""Seconds until a service must answer; on an idle machine one takes less than one."""

TEST_LABEL = "test"
"""A label that only a test alert has: each one is a group of its own, so none waits for another."""

TEST_ANNOTATIONS = {
    "summary": "a test by `monitor test`: the receiver works",
    "description": "The receiver accepted an alert.",
    "command": "dflash-deploy monitor status",
    "runbook_url": RUNBOOK,
}
"""The texts of a test alert."""

MOST_SAMPLES = 1000
"""Points in time at which Prometheus is asked whether an alert fired."""

FINEST = 15
"""Seconds between two of them; more often Prometheus does not look."""


@dataclass(frozen=True)
class MonitoringState(Documented):
    """What runs beside the deployment."""

    prometheus: str
    """Address of Prometheus; empty if it does not run."""
    alertmanager: str
    """Address of Alertmanager; empty if it does not run, so that alerts are sent to no receiver."""
    grafana: str
    """Address of Grafana; empty if it does not run."""
    targets: Sequence[ScrapedTarget] = ()
    """What Prometheus reads."""
    firing: Sequence[str] = ()
    """Names of the alerts that fire, as in docs/reference/alerts.md."""
    receivers: Sequence[str] = ()
    """Kind of each receiver in the configuration of Alertmanager, such as `webhook`; empty if it does not run."""


@dataclass(frozen=True)
class MonitoringStopped(Documented):
    """What `monitor down` did."""

    stopped: bool
    """Whether there was something to stop."""


@dataclass(frozen=True)
class AlertSent(Documented):
    """A test alert that Alertmanager took."""

    receivers: Sequence[str]
    """Kind of each receiver that it is for, such as `webhook`."""


def address_of(deployment: Deployment, service: str) -> str:
    """HOST:PORT of a service that runs for a deployment; empty if it does not run. Raises BadInput."""
    folder = monitoring_folder(deployment)
    if not (folder / COMPOSE_FILE).is_file():
        return ""
    port = ports_of(folder)[service]
    return f"{HOST}:{port}" if listener_on(HOST, port) else ""


def log_of(deployment: Deployment, service: str) -> str:
    """The command that shows the log of a service."""
    return f"`docker compose --project-directory {shown(monitoring_folder(deployment))} logs {service}`"


def start_monitoring(directory: Path, *, interval: int = INTERVAL, reporter: Reporter = SILENT) -> MonitoringState:
    """Start Prometheus, Alertmanager, Grafana and exporters for a deployment with Docker Compose.

    All listen on 127.0.0.1 only. One that runs starts again if its files changed; data stays. Raises EngineMissing
    without Docker, PortTaken, EngineNotReady if one does not answer, NoDeployment, SettingsRefused.
    """
    deployment = Deployment.existing(directory)
    plan = plan_of(deployment)
    refuse_other_ranks(plan)
    _check_docker()
    with_metrics_key(deployment)
    folder = monitoring_folder(deployment)
    with command_lock(deployment, "monitor up"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        targets, _ = write_project(deployment, plan, folder, interval=interval, note=reporter.note)
        _check_ports(deployment, folder, targets.profiles)
        _compose(deployment, "up", "--detach", "--remove-orphans", note=reporter.note)
        for service in (PROMETHEUS, ALERTMANAGER):
            _wait_ready(deployment, service)
    return monitoring_state(directory)


def _check_docker() -> None:
    """Raise EngineMissing if Docker or Compose does not respond here."""
    hint = "`dflash-deploy monitor export DIR` writes a folder that runs anywhere"
    try:
        engine = container_engine()
    except EngineMissing as missing:
        raise EngineMissing(missing.message, hint=f"{missing.hint}; {hint}") from None
    if (other := elsewhere(engine.host)) is not None:
        raise EngineMissing(other[0], hint=f"{other[1]}; {hint}")
    if engine.compose is None:
        said = f"Docker {engine.version} responds, but `docker compose` does not"
        raise EngineMissing(said, hint=f"install the Compose plugin; {hint}")


def _check_ports(deployment: Deployment, folder: Path, profiles: Sequence[str]) -> None:
    """Raise PortTaken if another program listens on the port of a service that does not run yet."""
    ours = {one.name for one in project_containers(project_name(deployment)) if one.state == "running"}
    for service, port in ports_of(folder).items():
        wanted = OPTIONAL.get(service) in {None, *profiles}
        runs = f"{project_name(deployment)}-{service}-1" in ours
        if wanted and not runs and listener_on(HOST, port):
            raise PortTaken(
                f"port {port} for {service} is taken",
                hint=f"set another {service.upper()}_PORT in {shown(folder / ENV_FILE)}",
            )


def _compose(deployment: Deployment, *words: str, note: Callable[[str], None] | None = None) -> None:
    from dflash_deploy.runtime.compose import compose_environment, run_command  # noqa: PLC0415 - Docker's client

    folder = monitoring_folder(deployment)
    written = {*dotenv.parse(read_text(folder / ENV_FILE, limit=MIB)), "COMPOSE_FILE", "COMPOSE_ENV_FILES"}
    command = ["docker", "compose", "--project-directory", str(folder), *words]
    run_command(deployment, words[0], command, folder, compose_environment(os.environ, written), note)


def _wait_ready(deployment: Deployment, service: str) -> None:
    def answers() -> bool:
        with MonitoringApi(f"{HOST}:{ports_of(monitoring_folder(deployment))[service]}") as api:
            return api.ready()

    try:
        _wait(answers, READY_WITHIN)
    except TimeoutError:
        raise EngineNotReady(f"{service} does not answer", hint=f"read {log_of(deployment, service)}") from None


def stop_monitoring(directory: Path) -> MonitoringStopped:
    """Remove the containers and keep their data. Raises EngineMissing, NoDeployment."""
    deployment = Deployment.existing(directory, check=False)
    file = monitoring_folder(deployment) / COMPOSE_FILE
    if not file.is_file():
        return MonitoringStopped(False)
    _check_docker()
    with command_lock(deployment, "monitor down"):
        _compose(deployment, "down", "--remove-orphans")
        # without it nothing is monitored: another program may listen on the ports
        file.unlink(missing_ok=True)
    return MonitoringStopped(True)


def monitoring_state(directory: Path) -> MonitoringState:
    """What runs, what Prometheus reads, and which alerts fire. Raises NoDeployment, EngineNotReady."""
    deployment = Deployment.existing(directory, check=False)
    prometheus, *urls = (address_of(deployment, one) for one in (PROMETHEUS, ALERTMANAGER, GRAFANA))
    alertmanager, grafana = (url and f"http://{url}" for url in urls)
    receivers = _kinds(deployment) if alertmanager else ()
    if not prometheus:
        return MonitoringState("", alertmanager, grafana, receivers=receivers)
    with MonitoringApi(prometheus) as api:
        try:
            targets, firing = api.targets(JOB), api.firing()
        except (httpx.HTTPError, Invalid) as problem:
            raise EngineNotReady(
                f"Prometheus does not answer: {problem}", hint=f"read {log_of(deployment, PROMETHEUS)}"
            ) from None
    return MonitoringState(f"http://{prometheus}", alertmanager, grafana, targets, firing, receivers)


def _kinds(deployment: Deployment) -> tuple[str, ...]:
    """The kind of each receiver in the configuration of Alertmanager: `webhook` for one of `webhook_configs`.

    Raises FileRefused, BadInput.
    """
    file = monitoring_folder(deployment) / ALERTMANAGER_FILE
    try:
        written: Any = parse_yaml(read_text(file, limit=MIB))
        configs = [item for one in written["receivers"] for item in one.items() if item[0].endswith("_configs")]
        return tuple(sorted(key.removesuffix("_configs") for key, value in configs for _ in value or ()))
    except (Invalid, AttributeError, KeyError, TypeError) as problem:
        raise BadInput(f"{shown(file)} is not a configuration of Alertmanager: {problem}", hint="correct it") from None


def send_test_alert(directory: Path) -> AlertSent:
    """Give Alertmanager an alert for its receivers.

    Raises NotPossible if Alertmanager does not run or has no receiver, EngineNotReady if it does not take the alert,
    NoDeployment.
    """
    deployment = Deployment.existing(directory, check=False)
    address = address_of(deployment, ALERTMANAGER)
    if not address:
        raise NotPossible(
            "Alertmanager does not run, so no alert is sent", hint="start it with `dflash-deploy monitor up`"
        )
    receivers = _kinds(deployment)
    if not receivers:
        file = shown(monitoring_folder(deployment) / ALERTMANAGER_FILE)
        raise NotPossible("no receiver gets alerts", hint=f"name one in {file}, then run `dflash-deploy monitor up`")
    labels = {
        "alertname": "MonitorTest",
        "severity": "warning",
        "deployment": deployment.project_name,
        TEST_LABEL: secrets.token_hex(4),
    }
    with MonitoringApi(address) as api:
        try:
            taken = api.post_alert(labels, TEST_ANNOTATIONS)
        except (httpx.HTTPError, Invalid):
            taken = False
    if not taken:
        raise EngineNotReady("Alertmanager did not take the alert", hint=f"read {log_of(deployment, ALERTMANAGER)}")
    return AlertSent(receivers)


def _wait(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until a condition holds. Raises TimeoutError."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.2)


def alerts_between(deployment: Deployment, since: datetime, now: datetime) -> list[Happened] | None:
    """When alerts began and ended; `None` if Prometheus does not run or does not answer."""
    address = address_of(deployment, PROMETHEUS)
    if not address:
        return None
    step = max(FINEST, int((now - since).total_seconds() // MOST_SAMPLES))
    try:
        with MonitoringApi(address) as api:
            fired = api.alerts_between(since, now, step)
    except (httpx.HTTPError, Invalid):
        return None
    return [event for name, instance, times in fired for event in _spans(name, instance, times, step, (since, now))]


def _spans(
    name: str, instance: str, times: Sequence[float], step: int, window: tuple[datetime, datetime]
) -> Iterator[Happened]:
    """The begin and the end of each time without a gap in which an alert fired.

    `times` are those of `MonitoringApi.alerts_between`. An alert that fired at the begin of the window began before.
    """
    since, now = window
    later = 0 if step > LOOK_BACK else step
    where = f" at {instance}" if instance else ""
    starts = [one for index, one in enumerate(times) if not index or one - times[index - 1] > 1.5 * step]
    ends = [one for index, one in enumerate(times) if index + 1 == len(times) or times[index + 1] - one > 1.5 * step]
    for began, ended in zip(starts, ends, strict=True):
        fires = "already fires" if began - since.timestamp() < step / 2 else "fires"
        yield Happened(datetime.fromtimestamp(began, UTC), f"{name} {fires}{where}")
        if now.timestamp() - ended > 2 * step:
            yield Happened(datetime.fromtimestamp(ended + later, UTC), f"{name} has ended{where}")


@dataclass(frozen=True)
class MonitoringExport(Documented):
    """The files that `monitor export` wrote."""

    directory: Path
    """Where they are."""
    files: Sequence[str]
    """Their paths below the directory. The one that ends with `.key` has the key; only its owner can read it."""
    targets: Sequence[str]
    """Address of each engine that Prometheus reads, as HOST:PORT."""
    key: str
    """Name of the key that Prometheus sends; it opens only GET /metrics."""
    key_added: bool
    """Whether the deployment got this key now."""


DOCUMENTS: Mapping[str, CommandData] = {
    "monitor up": CommandData((MonitoringState,)),
    "monitor down": CommandData((MonitoringStopped,)),
    "monitor status": CommandData((MonitoringState,)),
    "monitor test": CommandData((AlertSent,)),
    "monitor export": CommandData((MonitoringExport,)),
}


def export_monitoring(
    directory: Path, out: Path, *, interval: int = INTERVAL, reporter: Reporter = SILENT
) -> MonitoringExport:
    """Write the Compose project with all that Prometheus needs for a deployment into `out`, and add a key for it.

    The key opens /metrics only and is in a file of mode 0600. `interval` is in seconds. Raises BadInput for a directory
    that cannot be used, NotPossible if the key's name belongs to a key that opens more, NoDeployment, SettingsRefused.
    """
    deployment = Deployment.existing(directory)
    plan = plan_of(deployment)
    refuse_other_ranks(plan)
    check_output(_created(out) / KEY_FILE)
    refuse_files_of_others(out)
    added = with_metrics_key(deployment)
    targets, files = write_project(deployment, plan, out, interval=interval, note=reporter.note)
    return MonitoringExport(out.absolute(), files, (targets.engine,), KEY_NAME, added)


def _created(out: Path) -> Path:
    """The directory, created if it is missing. `check_output` is for files in one that exists."""
    if STATE in out.absolute().parts:
        raise BadInput(f"{out} is a directory of a deployment", hint="choose another directory")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise not_written(out, problem) from None
    return out


SETTLING = timedelta(seconds=150)
"""How long the silence of a command outlasts it: Prometheus reads the engine again within a minute."""

BY_COMMAND, AFTER_MEASURING = "dflash-deploy", "dflash-deploy, after many restarts"
"""Who made a silence, as Alertmanager shows it. Each command ends those of the first kind that others left."""


@contextmanager
def silenced(
    deployment: Deployment, command: str, note: Callable[[str], None], most: timedelta = WORK
) -> Iterator[None]:
    """Silence the alerts that a restart causes while the block runs, if Alertmanager runs.

    The silence ends with a failure of the block, so that its alerts are sent. After a success, or back with the
    last working settings, it lasts SETTLING longer. A command that measures restarts the engine often: RestartLoop
    stays silent for as long as it counts those restarts. The silence of a killed command ends with the next
    command, at the latest after `most`. An Alertmanager that does not answer stops no command.
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
    comment = f"`{command}` restarts the engine"
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
    """The labels of an alert that a restart of the deployment causes; as patterns."""
    caused = "|".join(alert.name for alert in alerts() if alert.by_restart)
    return {DEPLOYMENT: deployment.project_name, "alertname": caused}
