"""`monitor export --compose`: the real Compose reads it, and the real Prometheus and Alertmanager run its files.

No registry is reached here, so the images and Grafana do not run.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from dflash_deploy.features.monitoring.files import ADDRESSES, IMAGES, SOURCE
from dflash_deploy.features.monitoring.rules import alerts
from dflash_deploy.operations.key_file import key
from tests.support.cli import dflash, initialise
from tests.support.debian import monitoring_path, program
from tests.support.ports import free_port
from tests.support.prometheus import dashboards

COMPOSE = Path(sys.executable).with_name("docker-compose")

TOKEN = "tk_0123456789abcdef0123"
"""The key of the receiver."""

HANGS = 300.0
"""Seconds after which something counts as hung."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project for a machine with a GPU, with a receiver."""
    place = tmp_path_factory.mktemp("containers")
    initialise("--profile", "h100", "--runtime", "native", "--port", str(free_port()), at=place / "vision")
    (place / "token").write_text(f"{TOKEN}\n")
    options = ("--compose", "--ntfy", "https://ntfy.sh/topic", "--ntfy-token-file", "../token")
    dflash("monitor", "export", "../out", *options, at=place / "vision").succeeded()
    return place / "out"


@pytest.fixture(scope="module")
def read(exported: Path) -> dict[str, Any]:
    """The project as the real Compose reads it."""
    command = [str(COMPOSE), "-f", "docker-compose.yaml", "config", "--format", "json"]
    done = subprocess.run(command, cwd=exported, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_compose_reads_every_service_at_a_fixed_tag(read: dict[str, Any]) -> None:
    assert {name: service["image"] for name, service in read["services"].items()} == IMAGES
    assert all(":" in image and not image.endswith(":latest") for image in IMAGES.values())
    (device,) = read["services"]["gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia"


def test_nothing_is_published_but_on_this_machine(read: dict[str, Any]) -> None:
    assert all(address.startswith("127.0.0.1:") for address in ADDRESSES.values())
    for name, service in read["services"].items():
        assert service["network_mode"] == "host"
        assert "ports" not in service
        said = [*(service.get("command") or ()), *map(str, (service.get("environment") or {}).values())]
        assert any(ADDRESSES[name] in word for word in said) or name == "grafana"
        assert not [word for word in said if "0.0.0.0" in word]
    grafana = read["services"]["grafana"]["environment"]
    assert f"{grafana['GF_SERVER_HTTP_ADDR']}:{grafana['GF_SERVER_HTTP_PORT']}" == ADDRESSES["grafana"]


def test_each_key_is_a_secret_from_a_private_file(exported: Path, read: dict[str, Any]) -> None:
    files = {Path(secret["file"]).name for secret in read["secrets"].values()}
    assert files == {"metrics.key", "grafana.password", "alertmanager.yml", "ntfy.token"}
    assert {(exported / name).stat().st_mode & 0o777 for name in files} == {0o600}
    texts = {path.name: path.read_text() for path in exported.rglob("*") if path.is_file()}
    value = key(exported.parent / "vision", "prometheus").key.reveal()
    password = texts["grafana.password"].strip()
    assert len(password) >= 40
    for secret, file in ((value, "metrics.key"), (TOKEN, "ntfy.token"), (password, "grafana.password")):
        assert [name for name, text in texts.items() if secret in text] == [file]


def test_every_mounted_file_is_there_and_data_is_private(exported: Path, read: dict[str, Any]) -> None:
    mounts = [mount for service in read["services"].values() for mount in service.get("volumes", ())]
    assert not [mount["source"] for mount in mounts if not Path(mount["source"]).exists()]
    writable = [Path(mount["source"]) for mount in mounts if not mount.get("read_only")]
    assert {path.relative_to(exported).parts[0] for path in writable} == {"data"}
    assert {path.stat().st_mode & 0o777 for path in writable} == {0o700}


def test_grafana_gets_its_source_and_every_dashboard(exported: Path) -> None:
    (source, alerts) = yaml.safe_load((exported / "grafana" / "datasources.yaml").read_text())["datasources"]
    assert (source["uid"], source["url"], source["isDefault"]) == (SOURCE, f"http://{ADDRESSES['prometheus']}", True)
    assert alerts["url"] == f"http://{ADDRESSES['alertmanager']}"
    (provider,) = yaml.safe_load((exported / "grafana" / "providers.yaml").read_text())["providers"]
    assert provider["options"]["path"] == "/etc/dflash/dashboards"
    assert len(list((exported / "dashboards").glob("*.json"))) == len(dashboards())


def test_a_second_export_keeps_the_password(exported: Path) -> None:
    before = (exported / "grafana.password").read_text()
    dflash("monitor", "export", "../out", "--compose", at=exported.parent / "vision").succeeded()
    assert (exported / "grafana.password").read_text() == before
    assert "alertmanager" not in yaml.safe_load((exported / "docker-compose.yaml").read_text())["services"]
    options = ("--compose", "--ntfy", "https://ntfy.sh/topic", "--ntfy-token-file", "../token")
    dflash("monitor", "export", "../out", *options, at=exported.parent / "vision").succeeded()


@contextmanager
def running(name: str, words: Sequence[str], place: Path) -> Iterator[str]:
    """The program of this machine with a service's options, at a free port."""
    monitoring_path()
    address = f"127.0.0.1:{free_port()}"
    command = [
        str(program(name)),
        *(word.replace(ADDRESSES[name.rsplit("-", maxsplit=1)[-1]], address) for word in words),
    ]
    with (place / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=place, stdout=log, stderr=log)
    try:
        until = time.monotonic() + HANGS
        while True:
            assert process.poll() is None, Path(log.name).read_text()[-3000:]
            assert time.monotonic() < until
            try:
                if httpx.get(f"http://{address}/-/ready", timeout=HANGS).status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.1)
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(HANGS)


def words_of(read: dict[str, Any], service: str, exported: Path, data: Path) -> list[str]:
    """The options of a service, with the paths that its mounts have on this machine."""
    places = ((f"/etc/{service}/", f"{exported}/"), (f"=/{service}", f"={data}"))
    words = read["services"][service]["command"]
    for inside, outside in places:
        words = [word.replace(inside, outside) for word in words]
    return list(words)


def test_the_real_prometheus_runs_with_the_options_of_its_service(
    exported: Path, read: dict[str, Any], tmp_path: Path
) -> None:
    with running("prometheus", words_of(read, "prometheus", exported, tmp_path / "data"), tmp_path) as url:
        config = yaml.safe_load(httpx.get(f"{url}/api/v1/status/config", timeout=HANGS).json()["data"]["yaml"])
        assert {job["job_name"] for job in config["scrape_configs"]} == {"dflash", "dflash-node", "dflash-gpu"}
        groups = httpx.get(f"{url}/api/v1/rules", timeout=HANGS).json()["data"]["groups"]
        names = {rule["name"] for group in groups for rule in group["rules"]}
        assert names >= {alert.name for alert in alerts()}
        assert ADDRESSES["alertmanager"] in str(config["alerting"])


def test_the_real_alertmanager_runs_with_the_options_of_its_service(
    exported: Path, read: dict[str, Any], tmp_path: Path
) -> None:
    words = words_of(read, "alertmanager", exported, tmp_path / "data")
    with running("prometheus-alertmanager", words, tmp_path) as url:
        assert httpx.get(f"{url}/api/v2/receivers", timeout=HANGS).json() == [{"name": "ntfy"}]


def test_receivers_without_an_alertmanager_are_refused(exported: Path) -> None:
    ran = dflash("monitor", "export", "../other", "--mail", "a@b", at=exported.parent / "vision")
    assert "receivers of alerts need Alertmanager" in ran.err
    assert not (exported.parent / "other").exists()
