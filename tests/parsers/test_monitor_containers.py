"""The project of `monitor up`: the real Compose reads it, and promtool and amtool its files.

No registry is reached here, so the images and Grafana do not run. tests/processes/monitoring runs its Prometheus and
Alertmanager, with the options that its services have.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.features.monitoring.operations import SERVICES, monitoring_folder
from dflash_deploy.operations.key_file import key
from tests.support.cli import initialise
from tests.support.commands import run_command
from tests.support.debian import program
from tests.support.monitored import monitor_without_docker
from tests.support.ports import free_port
from tests.support.prometheus import dashboards

PORTS = {service.lower(): port for service, port in SERVICES.items()}
COMPOSE = Path(sys.executable).with_name("docker-compose")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project for a machine with a GPU, whose endpoint has a domain."""
    place = tmp_path_factory.mktemp("containers")
    domain = ("--domain", "box.internal")
    initialise("--profile", "h100", "--runtime", "compose", "--port", str(free_port()), *domain, at=place / "vision")
    monitor_without_docker("up", at=place / "vision")
    return monitoring_folder(Deployment(place / "vision"))


@pytest.fixture(scope="module")
def read(written: Path) -> dict[str, Any]:
    """The project as the real Compose reads it."""
    command = [str(COMPOSE), "config", "--format", "json"]
    done = subprocess.run(command, cwd=written, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_compose_reads_every_service_at_a_fixed_tag(read: dict[str, Any]) -> None:
    assert re.fullmatch("dflash-vision-.+-monitoring", read["name"])
    assert read["services"].keys() == PORTS.keys()
    images = [service["image"] for service in read["services"].values()]
    assert all(re.fullmatch(r".+:v?\d+\.\d+\.\d+.*", image) for image in images)
    (device,) = read["services"]["gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia"


def test_what_is_not_there_is_not_started(tmp_path: Path) -> None:
    initialise("--profile", "cpu", "--runtime", "native", "--port", str(free_port()), at=tmp_path / "vision")
    monitor_without_docker("up", at=tmp_path / "vision")
    folder = monitoring_folder(Deployment(tmp_path / "vision"))
    done = subprocess.run([str(COMPOSE), "config", "--services"], cwd=folder, capture_output=True, check=True)
    assert set(done.stdout.decode().split()) == PORTS.keys() - {"gpu", "blackbox"}


def test_nothing_is_published_but_on_this_machine(read: dict[str, Any]) -> None:
    for name, service in read["services"].items():
        assert service["network_mode"] == "host"
        assert "ports" not in service
        said = [*(service.get("command") or ()), *map(str, (service.get("environment") or {}).values())]
        assert any(f"127.0.0.1:{PORTS[name]}" in word for word in said) or name == "grafana"
        assert not [word for word in said if "0.0.0.0" in word or word.startswith(":")]
    grafana = read["services"]["grafana"]["environment"]
    assert (grafana["GF_SERVER_HTTP_ADDR"], grafana["GF_SERVER_HTTP_PORT"]) == ("127.0.0.1", str(PORTS["grafana"]))


def test_each_key_is_in_a_private_file_only(written: Path, read: dict[str, Any]) -> None:
    files = {Path(secret["file"]).name for secret in read["secrets"].values()}
    assert files == {"metrics.key", "grafana.password"}
    private = [written / name for name in (*files, "alertmanager/alertmanager.yml")]
    assert {path.stat().st_mode & 0o777 for path in private} == {0o600}
    texts = {path.name: path.read_text() for path in written.rglob("*") if path.is_file()}
    value = key(written.parents[1], "prometheus").key.reveal()
    password = texts["grafana.password"].strip()
    assert len(password) >= 40
    for secret, file in ((value, "metrics.key"), (password, "grafana.password")):
        assert [name for name, text in texts.items() if secret in text] == [file]


def test_every_mounted_file_is_there_and_data_is_private(written: Path, read: dict[str, Any]) -> None:
    mounts = [mount for service in read["services"].values() for mount in service.get("volumes", ())]
    assert not [mount["source"] for mount in mounts if not Path(mount["source"]).exists()]
    writable = [Path(mount["source"]) for mount in mounts if not mount.get("read_only")]
    assert {path.relative_to(written).parts[0] for path in writable} == {"data"}
    assert {path.stat().st_mode & 0o777 for path in writable} == {0o700}
    # Prometheus has each file that it names
    targets = {mount["target"] for mount in read["services"]["prometheus"]["volumes"]}
    rules = yaml.safe_load((written / "prometheus.yml").read_text())["rule_files"]
    assert targets >= {f"/etc/prometheus/{name}" for name in rules}


def test_grafana_gets_its_source_and_every_dashboard(written: Path, read: dict[str, Any]) -> None:
    environment = read["services"]["grafana"]["environment"]
    text = re.sub(r"\$(\w+)", lambda name: environment[name[1]], (written / "grafana/datasources.yaml").read_text())
    (source, alerts) = yaml.safe_load(text)["datasources"]
    assert (source["url"], source["isDefault"]) == ("http://127.0.0.1:9090", True)
    assert alerts["url"] == "http://127.0.0.1:9093"
    (provider,) = yaml.safe_load((written / "grafana" / "providers.yaml").read_text())["providers"]
    assert provider["options"]["path"] == "/etc/dflash/dashboards"
    assert len(list((written / "dashboards").glob("*.json"))) == len(dashboards())


def test_the_real_programs_read_the_files(written: Path) -> None:
    done = run_command(str(program("promtool")), "check", "config", str(written / "prometheus.yml"))
    assert done.returncode == 0, done.stdout + done.stderr
    config = yaml.safe_load((written / "prometheus.yml").read_text())
    jobs = {job["job_name"] for job in config["scrape_configs"]}
    assert jobs == {"dflash", "dflash-node", "dflash-gpu", "dflash-endpoint"}
