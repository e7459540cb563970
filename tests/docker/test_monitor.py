"""`monitor up` with the real Compose, and the Prometheus, Alertmanager and node exporter of Debian in their images."""

import io
import json
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from queue import Queue

import httpx
import pytest
import yaml

from dflash_deploy.assets import asset_text
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import ExitCode
from dflash_deploy.features.monitoring.operations import ENV_FILE, PORTS, monitoring_folder, ports_of, project_name
from tests.support.cli import initialise
from tests.support.commands import checked, eventually
from tests.support.container_engine import Engine
from tests.support.debian import program
from tests.support.monitored import ALERTMANAGER, ALERTMANAGER_FILE, HANGS, Received, monitor, webhook, webhook_config
from tests.support.ports import free_port

PROGRAMS = {"prometheus": "prometheus", "alertmanager": "prometheus-alertmanager", "node": "prometheus-node-exporter"}
# A person's file: the root of a container that runs these tests is not a shared mount.
OVERRIDE = """\
services:
  node:
    volumes: !override [{type: bind, source: /, target: /host, read_only: true}]
"""

TEMPLATES = Path("usr/share/prometheus/alertmanager")


def packed(name: str) -> bytes:
    """A file system with a program and the libraries that it is linked with."""
    binary = program(name)
    linked = [word for word in checked("ldd", str(binary)).split() if word.startswith("/")]
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", dereference=True) as archive:
        archive.add(binary, "bin/program")
        for library in linked:
            archive.add(library, library.lstrip("/"))
        for template in (binary.parents[2] / TEMPLATES).glob("*.tmpl"):
            archive.add(template, str(TEMPLATES / template.name))
    return written.getvalue()


@pytest.fixture(scope="module")
def images(engine: Engine) -> None:
    """The images of the project. No registry is reached here: that of Grafana has node exporter in it."""
    services = yaml.safe_load(asset_text("monitoring", "docker-compose.yaml"))["services"]
    for service in ("prometheus", "alertmanager", "node", "grafana"):
        words = ["/bin/program"] if service in PROGRAMS else ["/bin/program", "--web.listen-address=127.0.0.1:0"]
        entry = f"ENTRYPOINT {json.dumps(words)}"
        command = ["docker", "import", "--change", entry, "-", services[service]["image"]]
        archive = packed(PROGRAMS.get(service, "prometheus-node-exporter"))
        subprocess.run(command, input=archive, capture_output=True, check=True)


@pytest.fixture(scope="module")
def monitored(images: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A native deployment whose engine does not run, with free ports for the project."""
    place = tmp_path_factory.mktemp("monitored") / "vision"
    initialise("--profile", "cpu", "--runtime", "native", "--port", str(free_port()), at=place)
    folder = monitoring_folder(Deployment(place))
    folder.mkdir(parents=True)
    (folder / ENV_FILE).write_text("".join(f"{name}={free_port()}\n" for name in PORTS))
    (folder / "docker-compose.override.yaml").write_text(OVERRIDE)
    monitor("up", "--every", "1", at=place).succeeded()
    yield place
    monitor("down", at=place).succeeded()


def containers(place: Path) -> dict[str, str]:
    """The id of each container of the project, by its service."""
    wanted = f"label=com.docker.compose.project={project_name(Deployment(place))}"
    form = '{{.Label "com.docker.compose.service"}} {{.ID}}'
    listed = checked("docker", "ps", "--filter", wanted, "--format", form)
    return dict(line.split() for line in listed.splitlines())


def url(place: Path, service: str) -> str:
    """The address of a service."""
    return f"http://127.0.0.1:{ports_of(monitoring_folder(Deployment(place)))[f'{service.upper()}_PORT']}"


def test_the_services_run_and_are_read(monitored: Path) -> None:
    assert containers(monitored).keys() == {"prometheus", "alertmanager", "node", "grafana"}

    def jobs() -> set[str]:
        found = httpx.get(f"{url(monitored, 'prometheus')}/api/v1/targets", timeout=HANGS).json()
        return {one["labels"]["job"] for one in found["data"]["activeTargets"]}

    # it is ready before it knows
    eventually(lambda: jobs() == {"dflash", "dflash-node"})


def test_a_second_up_reads_changed_receivers(monitored: Path) -> None:
    received: Received = Queue()
    with webhook(received) as hook:
        file = monitoring_folder(Deployment(monitored)) / ALERTMANAGER_FILE
        file.write_text(webhook_config(hook))
        data = monitor("up", "--every", "1", "--json", at=monitored).succeeded().document["data"]
        assert data["alertmanager"] == url(monitored, ALERTMANAGER)
        alert = [{"labels": {"alertname": "Trial"}}]
        httpx.post(f"{data['alertmanager']}/api/v2/alerts", json=alert, timeout=HANGS).raise_for_status()
        assert received.get(timeout=HANGS)["alerts"]


def test_a_taken_port_is_said_before_anything_starts(engine: Engine, monitored: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    initialise("--profile", "cpu", "--runtime", "native", "--port", str(free_port()), at=other)
    folder = monitoring_folder(Deployment(other))
    folder.mkdir(parents=True)
    (folder / ENV_FILE).write_text((monitoring_folder(Deployment(monitored)) / ENV_FILE).read_text())
    ran = monitor("up", at=other)
    assert ran.code is ExitCode.PREFLIGHT
    assert "is taken" in ran.err
    assert "set another PROMETHEUS_PORT in" in ran.err
    assert not containers(other)


def test_down_leaves_the_data_only(monitored: Path) -> None:
    assert monitor("down", "--json", at=monitored).succeeded().document["data"]["stopped"]
    assert not containers(monitored)
    assert any((monitoring_folder(Deployment(monitored)) / "data" / "prometheus").iterdir())
