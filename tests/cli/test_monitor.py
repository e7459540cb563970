"""`monitor up` writes a project that promtool accepts, with a key that is in one of its files only."""

import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import ExitCode
from dflash_deploy.features.monitoring.operations import monitoring_folder
from dflash_deploy.operations.key_file import key
from tests.support.cli import dflash, edit_env, initialise
from tests.support.commands import run_command
from tests.support.debian import program
from tests.support.monitored import monitor_without_docker
from tests.support.ports import free_port


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    return initialised(tmp_path / "vision", "cpu")


def initialised(place: Path, profile: str, runtime: str = "native") -> Path:
    initialise("--profile", profile, "--runtime", runtime, "--port", str(free_port()), at=place)
    return place


def written(place: Path, *options: str) -> Path:
    """The folder of the project, which is written without Docker too."""
    ran = monitor_without_docker("up", *options, at=place)
    assert ran.code is ExitCode.PREFLIGHT
    assert "Docker is not installed" in ran.err
    return monitoring_folder(Deployment(place))


def jobs(folder: Path) -> dict[str, list[str]]:
    """The targets of each scrape job."""
    document: dict[str, Any] = yaml.safe_load((folder / "prometheus.yml").read_text())
    return {job["job_name"]: job["static_configs"][0]["targets"] for job in document["scrape_configs"]}


def limits(folder: Path) -> dict[str, str]:
    (group,) = yaml.safe_load((folder / "limits.yaml").read_text())["groups"]
    return {rule["record"].removeprefix("dflash:limit:"): rule["expr"] for rule in group["rules"]}


def test_promtool_accepts_the_files_and_they_are_of_this_deployment(deployment: Path) -> None:
    folder = written(deployment)
    done = run_command(str(program("promtool")), "check", "config", str(folder / "prometheus.yml"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout
    port = Deployment(deployment).values["DFLASH_PORT"]
    alone: dict[str, list[str]] = {"dflash-gpu": [], "dflash-endpoint": []}
    assert jobs(folder) == {"dflash": [f"127.0.0.1:{port}"], "dflash-node": ["127.0.0.1:9100"], **alone}
    document = yaml.safe_load((folder / "prometheus.yml").read_text())
    labels = {job["static_configs"][0]["labels"]["deployment"] for job in document["scrape_configs"]}
    assert labels == {Deployment(deployment).project_name}
    assert "COMPOSE_PROFILES=\n" in (folder / ".env").read_text()


def test_the_key_is_in_its_file_only(deployment: Path) -> None:
    folder = written(deployment)
    value = key(deployment, "prometheus").key.reveal()
    assert (folder / "metrics.key").read_text().strip() == value
    assert stat.S_IMODE((folder / "metrics.key").stat().st_mode) == 0o600
    holders = [path.name for path in folder.rglob("*") if path.is_file() and value in path.read_text()]
    assert holders == ["metrics.key"]
    (added,) = Deployment(deployment).further_keys
    assert added.scope == "metrics"


def test_a_second_run_keeps_what_is_a_persons_and_follows_the_settings(deployment: Path) -> None:
    folder = written(deployment)
    kept = {name: (folder / name).read_text() for name in ("metrics.key", "grafana.password")}
    receivers, ports = folder / "alertmanager" / "alertmanager.yml", folder / ".env"
    receivers.write_text("mine: true\n")
    ports.write_text(ports.read_text().replace("NODE_PORT=9100", "NODE_PORT=9200"))
    edit_env(deployment, MAX_NUM_SEQS="7")
    written(deployment, "--every", "5")
    assert {name: (folder / name).read_text() for name in kept} == kept
    assert receivers.read_text() == "mine: true\n"
    assert jobs(folder)["dflash-node"] == ["127.0.0.1:9200"]
    assert limits(folder)["queue"] == "vector(7)"
    assert "scrape_interval: 5s" in (folder / "prometheus.yml").read_text()
    ports.write_text(ports.read_text().replace("NODE_PORT=9200", "NODE_PORT=box"))
    refused = dflash("monitor", "up", at=deployment)
    assert refused.code is ExitCode.USAGE
    assert "NODE_PORT=`box` is not a valid port" in refused.err


@pytest.mark.parametrize(
    ("profile", "ttft", "memory"), [("h100", "vector(2)", 1 << 30), ("dgx-spark", "vector(5)", 4 << 30)]
)
def test_limits_and_jobs_follow_the_machine(tmp_path: Path, profile: str, ttft: str, memory: int) -> None:
    folder = written(initialised(tmp_path, profile, "compose"))
    found = limits(folder)
    assert (found["ttft_seconds"], found["memory_available_bytes"]) == (ttft, f"vector({memory})")
    assert (found["drafts"], found["certificate_seconds"]) == ("vector(1)", f"vector({7 * 86400})")
    assert jobs(folder)["dflash-gpu"] == ["127.0.0.1:9400"]
    assert "COMPOSE_PROFILES=gpu\n" in (folder / ".env").read_text()


def test_the_endpoint_is_asked_for_as_clients_reach_it(deployment: Path) -> None:
    edit_env(deployment, DFLASH_DOMAIN="box.internal")
    folder = written(deployment)
    assert jobs(folder)["dflash-endpoint"] == ["https://box.internal/health"]
    # Caddy's own authority signs a name of a private network
    assert limits(folder)["certificate_seconds"] == "vector(7200)"
    assert "COMPOSE_PROFILES=domain\n" in (folder / ".env").read_text()


def test_a_key_with_that_name_that_opens_more_is_not_given_out(deployment: Path) -> None:
    dflash("keys", "add", "prometheus", "--scope", "all", at=deployment).succeeded()
    ran = dflash("monitor", "up", at=deployment)
    assert ran.code is ExitCode.USAGE
    assert "opens more than /metrics" in ran.err
    assert not monitoring_folder(Deployment(deployment)).exists()


def test_that_nothing_runs_is_not_an_error(deployment: Path) -> None:
    assert not dflash("monitor", "down", "--json", at=deployment).succeeded().document["data"]["stopped"]


@pytest.mark.parametrize("word", ["status", "test", "export"])
def test_a_command_that_is_gone_says_what_to_do_instead(deployment: Path, word: str) -> None:
    ran = dflash("monitor", word, at=deployment)
    assert ran.code is ExitCode.USAGE
    assert "monitor up" in ran.err
