"""`monitor export`: files that promtool accepts, with a key that is in one of them only."""

import socket
import stat
from pathlib import Path

import pytest
import yaml

from dflash_deploy.deployment import Deployment
from dflash_deploy.errors import ExitCode
from dflash_deploy.operations import key
from tests.support.cli import dflash, edit_env, initialise
from tests.support.commands import run_command
from tests.support.debian import monitoring_path, program
from tests.support.ports import free_port


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    place = tmp_path / "vision"
    initialise("--profile", "cpu", "--runtime", "native", "--port", str(free_port()), at=place)
    return place


def test_promtool_accepts_what_is_exported(deployment: Path, tmp_path: Path) -> None:
    ran = dflash("monitor", "export", "../out", "--node", "127.0.0.1:9100", "--json", at=deployment).succeeded()
    data = ran.document["data"]
    assert data["key_added"]
    out = tmp_path / "out"
    assert {path.name for path in out.iterdir()} >= {Path(name).parts[0] for name in data["files"]}
    done = run_command(str(program("promtool")), "check", "config", str(out / "prometheus.yml"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout
    document = yaml.safe_load((out / "prometheus.yml").read_text())
    (config,) = document["scrape_configs"][0]["static_configs"]
    assert config["targets"] == data["targets"]
    assert config["labels"]["deployment"] == Deployment(deployment).project_name


def test_the_key_is_in_its_file_only(deployment: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran = dflash("monitor", "export", str(out), at=deployment).succeeded()
    value = key(deployment, "prometheus").key.reveal()
    assert (out / "metrics.key").read_text().strip() == value
    assert stat.S_IMODE((out / "metrics.key").stat().st_mode) == 0o600
    holders = [path.name for path in out.rglob("*") if path.is_file() and value in path.read_text()]
    assert holders == ["metrics.key"]
    assert value not in ran.out + ran.err
    (added,) = Deployment(deployment).further_keys
    assert added.scope == "metrics"


def test_a_second_export_keeps_the_key_and_follows_the_settings(deployment: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    dflash("monitor", "export", str(out), at=deployment).succeeded()
    before = (out / "metrics.key").read_text()
    edit_env(deployment, MAX_NUM_SEQS="7")
    ran = dflash("monitor", "export", str(out), "--every", "5", "--json", at=deployment).succeeded()
    assert not ran.document["data"]["key_added"]
    assert (out / "metrics.key").read_text() == before
    assert "vector(7)" in (out / "limits.yaml").read_text()
    assert "scrape_interval: 5s" in (out / "prometheus.yml").read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("out", "--node", "http://box:9100"), "`http://box:9100` is not a valid address"),
        (("out", "--gpu", "box"), "`box` is not a valid address"),
        ((".dflash/out",), "is a directory of a deployment"),
        ((".env/out",), "cannot be written"),
    ],
)
def test_what_cannot_be_written_is_a_usage_error(deployment: Path, options: tuple[str, ...], said: str) -> None:
    ran = dflash("monitor", "export", *options, at=deployment)
    assert ran.code is ExitCode.USAGE
    assert said in ran.err
    assert not Deployment(deployment).further_keys


def test_a_key_with_that_name_that_opens_more_is_not_given_out(deployment: Path, tmp_path: Path) -> None:
    dflash("keys", "add", "prometheus", "--scope", "all", at=deployment).succeeded()
    ran = dflash("monitor", "export", str(tmp_path / "out"), at=deployment)
    assert ran.code is ExitCode.USAGE
    assert "opens more than /metrics" in ran.err
    assert not (tmp_path / "out" / "metrics.key").exists()


def test_each_of_several_engines_is_read(tmp_path: Path) -> None:
    place = tmp_path / "several"
    port = free_port()
    initialise("--profile", "cpu", "--runtime", "native", "--replicas", "2", "--port", str(port), at=place)
    ran = dflash("monitor", "export", str(tmp_path / "out"), "--json", at=place).succeeded()
    assert len(set(ran.document["data"]["targets"])) == 2
    document = yaml.safe_load((tmp_path / "out" / "prometheus.yml").read_text())
    configs = document["scrape_configs"][0]["static_configs"]
    assert [config["labels"]["replica"] for config in configs] == ["1", "2"]
    assert f"127.0.0.1:{port}" not in ran.document["data"]["targets"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("up",), ExitCode.PREFLIGHT, "Prometheus is not installed"),
        (("up", "--webhook", "box"), ExitCode.USAGE, "the webhook is not a valid URL"),
        (("test",), ExitCode.USAGE, "Alertmanager does not run"),
    ],
)
def test_what_cannot_run_is_an_error_with_a_hint(
    deployment: Path, tmp_path: Path, words: tuple[str, ...], code: ExitCode, said: str
) -> None:
    before = (deployment / ".env").read_text()
    ran = dflash("monitor", *words, at=deployment, environment={"PATH": str(tmp_path)})
    assert ran.code is code
    assert said in ran.err
    assert "hint:" in ran.err
    assert (deployment / ".env").read_text() == before


def test_that_nothing_runs_is_not_an_error(deployment: Path) -> None:
    data = dflash("monitor", "status", "--json", at=deployment).succeeded().document["data"]
    assert data == {"prometheus": "", "alertmanager": "", "targets": [], "firing": []}
    assert "does not run" in dflash("monitor", "status", at=deployment).succeeded().out
    assert not dflash("monitor", "down", "--json", at=deployment).succeeded().document["data"]["stopped"]


def test_a_port_that_is_taken_is_said_before_anything_starts(deployment: Path) -> None:
    path = monitoring_path()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = str(listener.getsockname()[1])
        ran = dflash("monitor", "up", "--port", port, at=deployment, environment={"PATH": path})
    assert ran.code is ExitCode.PREFLIGHT
    assert f"port {port} for Prometheus is taken" in ran.err
