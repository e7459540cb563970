"""The project of `monitor up` and `monitor export`: the real Compose reads it, and promtool and amtool its files.

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

from dflash_deploy.features.monitoring.project import PORTS, RULE_FILES
from dflash_deploy.operations.key_file import key
from tests.support.cli import dflash, initialise
from tests.support.commands import run_command
from tests.support.debian import program
from tests.support.ports import free_port
from tests.support.prometheus import dashboards

COMPOSE = Path(sys.executable).with_name("docker-compose")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project for a machine with a GPU, whose endpoint has a domain."""
    place = tmp_path_factory.mktemp("containers")
    domain = ("--domain", "box.internal")
    initialise("--profile", "h100", "--runtime", "native", "--port", str(free_port()), *domain, at=place / "vision")
    dflash("monitor", "export", "../out", at=place / "vision").succeeded()
    return place / "out"


@pytest.fixture(scope="module")
def read(exported: Path) -> dict[str, Any]:
    """The project as the real Compose reads it."""
    command = [str(COMPOSE), "config", "--format", "json"]
    done = subprocess.run(command, cwd=exported, capture_output=True, text=True, check=False)
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
    dflash("monitor", "export", "../out", at=tmp_path / "vision").succeeded()
    done = subprocess.run([str(COMPOSE), "config", "--services"], cwd=tmp_path / "out", capture_output=True, check=True)
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


def test_each_key_is_in_a_private_file_only(exported: Path, read: dict[str, Any]) -> None:
    files = {Path(secret["file"]).name for secret in read["secrets"].values()}
    assert files == {"metrics.key", "grafana.password"}
    private = [exported / name for name in (*files, "alertmanager/alertmanager.yml")]
    assert {path.stat().st_mode & 0o777 for path in private} == {0o600}
    texts = {path.name: path.read_text() for path in exported.rglob("*") if path.is_file()}
    value = key(exported.parent / "vision", "prometheus").key.reveal()
    password = texts["grafana.password"].strip()
    assert len(password) >= 40
    for secret, file in ((value, "metrics.key"), (password, "grafana.password")):
        assert [name for name, text in texts.items() if secret in text] == [file]


def test_every_mounted_file_is_there_and_data_is_private(exported: Path, read: dict[str, Any]) -> None:
    mounts = [mount for service in read["services"].values() for mount in service.get("volumes", ())]
    assert not [mount["source"] for mount in mounts if not Path(mount["source"]).exists()]
    writable = [Path(mount["source"]) for mount in mounts if not mount.get("read_only")]
    assert {path.relative_to(exported).parts[0] for path in writable} == {"data"}
    assert {path.stat().st_mode & 0o777 for path in writable} == {0o700}
    # Prometheus has each file that it names
    targets = {mount["target"] for mount in read["services"]["prometheus"]["volumes"]}
    assert targets >= {f"/etc/prometheus/{name}" for name in RULE_FILES}


def test_grafana_gets_its_source_and_every_dashboard(exported: Path, read: dict[str, Any]) -> None:
    environment = read["services"]["grafana"]["environment"]
    text = re.sub(r"\$(\w+)", lambda name: environment[name[1]], (exported / "grafana/datasources.yaml").read_text())
    (source, alerts) = yaml.safe_load(text)["datasources"]
    assert (source["url"], source["isDefault"]) == ("http://127.0.0.1:9090", True)
    assert alerts["url"] == "http://127.0.0.1:9093"
    (provider,) = yaml.safe_load((exported / "grafana" / "providers.yaml").read_text())["providers"]
    assert provider["options"]["path"] == "/etc/dflash/dashboards"
    assert len(list((exported / "dashboards").glob("*.json"))) == len(dashboards())


def test_the_real_programs_read_the_files(exported: Path) -> None:
    done = run_command(str(program("promtool")), "check", "config", str(exported / "prometheus.yml"))
    assert done.returncode == 0, done.stdout + done.stderr
    config = yaml.safe_load((exported / "prometheus.yml").read_text())
    jobs = {job["job_name"] for job in config["scrape_configs"]}
    assert jobs == {"dflash", "dflash-node", "dflash-gpu", "dflash-endpoint"}
