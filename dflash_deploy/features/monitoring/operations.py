"""`monitor up`, `down`, `status` and `test`: Prometheus and Alertmanager beside a deployment, on this machine."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.lock import command_lock
from dflash_deploy.errors import BadInput, EngineNotReady, SmokeTestFailed
from dflash_deploy.features.monitoring.api import MonitoringApi, Notifications, ScrapedTarget
from dflash_deploy.features.monitoring.export import (
    NO_EXPORTERS,
    Exporters,
    monitoring_files,
    note_older_door,
    scraped,
    with_metrics_key,
)
from dflash_deploy.features.monitoring.files import (
    INTEGRATIONS,
    INTERVAL,
    JOB,
    NO_RECEIVERS,
    RECEIVER_FILES,
    TEST_LABEL,
    Receivers,
    alertmanager_files,
)
from dflash_deploy.features.monitoring.programs import (
    ALERTMANAGER_PROGRAM,
    HOST,
    PROGRAMS,
    PROMETHEUS_PROGRAM,
    MonitoringProcess,
    MonitoringProgram,
    address_of,
    alertmanager_of,
)
from dflash_deploy.features.monitoring.rules import RUNBOOK
from dflash_deploy.intake.parse import Invalid
from dflash_deploy.operations.replicas import refuse_other_ranks
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.planning import plan_of

READY_WITHIN = 120.0
"""Seconds until a program must answer; on an idle machine one takes less than one."""

TEST_ANNOTATIONS = {
    "summary": "a test by `monitor test`: the receiver works",
    "description": "The receiver accepted an alert.",
    "command": "dflash-deploy monitor status",
    "runbook_url": RUNBOOK,
}
"""The texts of a test alert."""

DELIVERED_WITHIN = 120.0
"""Seconds until the receiver must have the test alert; Alertmanager waits 5 s for further ones of the group."""

PORT, ALERT_PORT = 9090, 9093


@dataclass(frozen=True)
class MonitoringState:
    """What runs. An empty address: that program does not run. `firing` are names of alerts, which `receivers` get."""

    prometheus: str
    alertmanager: str
    targets: Sequence[ScrapedTarget] = ()
    firing: Sequence[str] = ()
    receivers: Sequence[str] = ()

    def document(self) -> dict[str, object]:
        """The `data` of `monitor up --json` and `monitor status --json`."""
        return {
            "prometheus": self.prometheus and f"http://{self.prometheus}",
            "alertmanager": self.alertmanager and f"http://{self.alertmanager}",
            "targets": [asdict(one) for one in self.targets],
            "firing": list(self.firing),
            "receivers": list(self.receivers),
        }


def start_monitoring(
    directory: Path,
    *,
    to: Receivers = NO_RECEIVERS,
    exporters: Exporters = NO_EXPORTERS,
    port: int = PORT,
    alert_port: int = ALERT_PORT,
    interval: int = INTERVAL,
    reporter: Reporter = SILENT,
) -> MonitoringState:
    """Start Prometheus beside a deployment, and Alertmanager if there are receivers; `receivers` checks and makes them.

    Both listen on 127.0.0.1 only. A running one restarts if its configuration changed; its data stays. Raises BadInput
    for an address that is not valid, PreflightRefused if a program is missing, PortTaken, EngineNotReady if one does
    not answer, NoDeployment, SettingsRefused.
    """
    exporters.checked()
    deployment = Deployment.existing(directory)
    plan = plan_of(deployment)
    refuse_other_ranks(plan)
    _check_programs(deployment, {PROMETHEUS_PROGRAM: port, **({ALERTMANAGER_PROGRAM: alert_port} if to else {})})
    with_metrics_key(deployment)
    alertmanager = f"{HOST}:{alert_port}" if to else None
    targets = scraped(deployment, plan, exporters)
    note_older_door(targets, reporter.note)
    files = monitoring_files(
        deployment, plan, targets, interval=interval, alertmanager=alertmanager, note=reporter.note
    )
    with command_lock(deployment, "monitor up"):
        sender = MonitoringProcess(deployment, ALERTMANAGER_PROGRAM)
        if to:
            _started(sender, alert_port, alertmanager_files(to), reporter)
        else:
            sender.down()
        # keys of receivers that are no longer used
        sender.remove(set(RECEIVER_FILES) - (alertmanager_files(to).keys() if to else set()))
        _started(MonitoringProcess(deployment, PROMETHEUS_PROGRAM), port, files, reporter)
    return monitoring_state(directory)


def _check_programs(deployment: Deployment, ports: Mapping[MonitoringProgram, int]) -> None:
    """Raise what would keep a program from starting, before anything is written."""
    if len(set(ports.values())) < len(ports):
        raise BadInput("--port and --alert-port are the same", hint="Prometheus and Alertmanager need a port each")
    for program, port in ports.items():
        program.path()
        MonitoringProcess(deployment, program).check_port(port)


def stop_monitoring(directory: Path) -> bool:
    """Stop both programs and keep their data; return whether one ran. Raises NoDeployment."""
    deployment = Deployment.existing(directory, check=False)
    with command_lock(deployment, "monitor down"):
        stopped = [MonitoringProcess(deployment, program).down() for program in PROGRAMS]
    return any(stopped)


def monitoring_state(directory: Path) -> MonitoringState:
    """What runs, what Prometheus reads, and which alerts fire. Raises NoDeployment, EngineNotReady."""
    deployment = Deployment.existing(directory, check=False)
    prometheus, alertmanager = (address_of(deployment, program) for program in PROGRAMS)
    receivers = _receivers(deployment, alertmanager)
    if not prometheus:
        return MonitoringState("", alertmanager, receivers=receivers)
    with MonitoringApi(prometheus) as api:
        try:
            return MonitoringState(prometheus, alertmanager, api.targets(JOB), api.firing(), receivers)
        except (httpx.HTTPError, Invalid) as problem:
            raise EngineNotReady(
                f"Prometheus does not answer: {problem}",
                hint=f"read {MonitoringProcess(deployment, PROMETHEUS_PROGRAM).log}",
            ) from None


def _receivers(deployment: Deployment, alertmanager: str) -> Sequence[str]:
    """The receivers of an Alertmanager that runs."""
    if not alertmanager:
        return ()
    with MonitoringApi(alertmanager) as api:
        try:
            return api.receivers()
        except (httpx.HTTPError, Invalid) as problem:
            raise EngineNotReady(
                f"Alertmanager does not answer: {problem}",
                hint=f"read {MonitoringProcess(deployment, ALERTMANAGER_PROGRAM).log}",
            ) from None


def send_test_alert(directory: Path) -> float:
    """Send an alert through Alertmanager to its receivers; return the seconds until all of them had accepted it.

    Raises NotPossible if Alertmanager does not run, SmokeTestFailed if a receiver does not accept it, NoDeployment.
    """
    deployment = Deployment.existing(directory, check=False)
    address = alertmanager_of(deployment)
    labels = {
        "alertname": "MonitorTest",
        "severity": "warning",
        "deployment": deployment.project_name,
        TEST_LABEL: secrets.token_hex(4),
    }
    began = time.monotonic()
    with MonitoringApi(address) as api:
        try:
            before, receivers = api.notifications(), api.receivers()
            api.post_alert(labels, TEST_ANNOTATIONS)
            _wait(lambda: _delivered(api, before, deployment, receivers), DELIVERED_WITHIN)
        except (httpx.HTTPError, Invalid, ValueError) as problem:
            raise EngineNotReady(
                f"Alertmanager does not answer: {problem}",
                hint=f"read {MonitoringProcess(deployment, ALERTMANAGER_PROGRAM).log}",
            ) from None
        except TimeoutError:
            raise _refused(deployment, "accepted no alert within two minutes") from None
    return time.monotonic() - began


def _delivered(api: MonitoringApi, before: Notifications, deployment: Deployment, receivers: Sequence[str]) -> bool:
    wanted = Counter(INTEGRATIONS[name] for name in receivers)
    now = api.notifications().since(before)
    if _accepted(now, wanted):
        # a try that fails is counted first, and as failed a moment later
        return _accepted(api.notifications().since(before), wanted)
    if any(count > 1 for count in now.failed_tries.values()):
        raise _refused(deployment, "did not accept the alert in two tries")
    return False


def _accepted(now: Notifications, wanted: Mapping[str, int]) -> bool:
    """Whether each kind of receiver accepted as many: two accepted by one leave another one open."""
    return all(now.accepted.get(name, 0) >= count for name, count in wanted.items())


def _refused(deployment: Deployment, said: str) -> SmokeTestFailed:
    log = MonitoringProcess(deployment, ALERTMANAGER_PROGRAM).log
    return SmokeTestFailed(f"the receiver {said}", hint=f"check its address and its key; {log} has the reason")


def _started(process: MonitoringProcess, port: int, files: dict[str, str], reporter: Reporter) -> None:
    if process.start(port, files, reporter.note):
        reporter.note(f"starting {process.program.title}")

    def answers() -> bool:
        if not process.state().alive:
            raise TimeoutError
        with MonitoringApi(f"{HOST}:{port}") as api:
            return api.ready()

    try:
        _wait(answers, READY_WITHIN)
    except TimeoutError:
        raise EngineNotReady(
            f"{process.program.title} does not answer", hint=f"read {process.log}", detail=process.last_lines()
        ) from None


def _wait(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until a condition holds. Raises TimeoutError."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.2)
