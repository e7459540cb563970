"""Prometheus and Alertmanager of Debian with the files of `monitor up`, with faster clocks, and a webhook.

`monitor up` starts images, which need a registry. Here the programs of this machine run at the ports of the project,
with the options that its services have.
"""

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import httpx
import yaml

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.lock import command_lock
from dflash_deploy.features.monitoring.operations import (
    COMPOSE_FILE,
    ENV_FILE,
    PORTS,
    add_metrics_key,
    monitoring_folder,
    ports_of,
    write_project,
)
from dflash_deploy.planning import plan_of
from tests.support.cli import Ran, dflash
from tests.support.debian import monitoring_path, program
from tests.support.ports import free_port
from tests.support.serving import Quiet, listening

HANGS = 300.0  # seconds after which something counts as hung
Received = Queue[dict[str, Any]]  # the notifications that a webhook got
PROMETHEUS, ALERTMANAGER, ALERTMANAGER_FILE = "prometheus", "alertmanager", "alertmanager/alertmanager.yml"
_PROGRAMS = {PROMETHEUS: "prometheus", ALERTMANAGER: "prometheus-alertmanager"}


def monitor(*words: str, at: Path) -> Ran:
    """`dflash-deploy monitor`."""
    return dflash("monitor", *words, at=at)


def monitor_without_docker(*words: str, at: Path) -> Ran:
    """`dflash-deploy monitor` on a machine without Docker: `up` writes the project, and cannot start it."""
    return dflash("monitor", *words, at=at, environment={"PATH": str(at)})


@contextmanager
def webhook(received: Received) -> Iterator[str]:
    """A receiver of alerts, as long as the block runs; yields its address."""

    class Webhook(Quiet):
        def do_POST(self) -> None:  # noqa: N802 - the name of the base class
            received.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send(200, "text/plain", b"")

    with listening(Webhook) as url:
        yield f"{url}/alerts"


def webhook_config(url: str) -> str:
    """A configuration of Alertmanager that sends all alerts to a webhook, with the waits of `monitor up`."""
    usual = (Path(__file__).parents[2] / "monitoring" / ALERTMANAGER_FILE).read_text()
    return usual.replace("- name: owner\n", f"- name: owner\n  webhook_configs:\n  - url: {url}\n", 1)


@dataclass
class Project:
    """The project of a deployment, whose Prometheus and Alertmanager run as processes."""

    directory: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return monitoring_folder(Deployment(self.directory))

    def url(self, service: str = PROMETHEUS) -> str:
        """The address of a service."""
        return f"http://127.0.0.1:{ports_of(self.folder)[f'{service.upper()}_PORT']}"

    def reload(self) -> None:
        """Let both programs read their files again."""
        for process in self.running.values():
            process.send_signal(signal.SIGHUP)

    def shorten(self, *, window: str, lasts: str) -> None:
        """Shorten the windows of all rates, how long each condition must hold, and the waits of Alertmanager.

        Alertmanager then waits one second for further alerts of a group.
        """
        rules, alerts, sender = (self.folder / name for name in ("rules.yaml", "alerts.yaml", ALERTMANAGER_FILE))
        rules.write_text(re.sub(r"\[[25]m\]", f"[{window}]", rules.read_text()))
        alerts.write_text(re.sub(r"for: [1-9]\d*[smh]", f"for: {lasts}", alerts.read_text()))
        sender.write_text(re.sub(r"(group_wait|group_interval): \S+", r"\1: 1s", sender.read_text()))
        self.reload()

    def start(self) -> None:
        """Start both programs, and wait until they are ready."""
        for service in _PROGRAMS:
            self.running[service] = self._started(service)
        for service, process in self.running.items():
            _wait_ready(f"{self.url(service)}/-/ready", process, self.folder / f"{service}.log")

    def stop(self) -> None:
        """End both programs. Their files stay."""
        for process in self.running.values():
            process.terminate()
            process.wait(HANGS)
        self.running.clear()

    def _started(self, service: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{service}.log").open("wb") as log:
            words = service_words(self.folder, service, self.folder / "data" / service)
            place = self.folder if service == PROMETHEUS else self.folder / "alertmanager"
            command = [str(program(_PROGRAMS[service])), *words]
            return subprocess.Popen(command, cwd=place, stdout=log, stderr=log)


def service_words(folder: Path, service: str, data: Path) -> Sequence[str]:
    """The options of a service with the paths of this machine."""
    monitoring_path()
    words = yaml.safe_load((folder / COMPOSE_FILE).read_text())["services"][service]["command"]
    place = folder if service == PROMETHEUS else folder / "alertmanager"
    for inside, outside in ((f"/etc/{service}", str(place)), (f"=/{service}", f"={data}")):
        words = [word.replace(inside, outside) for word in words]
    ports = {f"${{{name}}}": port for name, port in ports_of(folder).items()}
    return [re.sub(r"\$\{\w+\}", lambda found: ports[found[0]], word) for word in words]


@contextmanager
def watched(directory: Path, config: str = "", *, interval: int = 15, **ports: int) -> Iterator[Project]:
    """The project of a deployment runs as long as the block does, with a configuration of Alertmanager.

    Services have free ports, and those in `ports` the ones that are named, such as `NODE_PORT`.
    """
    deployment, project = Deployment.existing(directory), Project(directory)
    add_metrics_key(deployment)
    project.folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{name}={ports.get(name) or free_port()}\n" for name in PORTS)
    (project.folder / ENV_FILE).write_text(lines)
    with command_lock(deployment, "monitor up"):
        write_project(deployment, plan_of(deployment), interval)
    if config:
        (project.folder / ALERTMANAGER_FILE).write_text(config)
    try:
        project.start()
        yield project
    finally:
        project.stop()


def _wait_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + HANGS
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            if httpx.get(url, timeout=HANGS).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"{url} is not ready: {log.read_text()[-3000:]}")


def fired(received: Received, wanted: set[str], seconds: float = HANGS) -> dict[str, set[str]]:
    """The instances of each alert that a webhook got; waits until all of `wanted` have come."""
    found: dict[str, set[str]] = {}
    ends = time.monotonic() + seconds
    while not wanted <= found.keys() and time.monotonic() < ends:
        try:
            notified = received.get(timeout=1)
        except Empty:
            continue
        for alert in notified["alerts"]:
            if alert["status"] == "firing":
                found.setdefault(alert["labels"]["alertname"], set()).add(alert["labels"].get("instance", ""))
    assert wanted <= found.keys(), f"{wanted - found.keys()} did not come, but {found}"
    return found
