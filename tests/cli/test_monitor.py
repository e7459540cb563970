"""`monitor export`: files that promtool accepts, with a key that is in one of them only."""

import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import ExitCode
from dflash_deploy.operations.bench import LAST_BASELINE, keep_figures
from dflash_deploy.operations.key_file import key
from dflash_deploy.planning import plan_of
from tests.support.bench_figures import figures, keep, keep_baseline, settings_of
from tests.support.cli import dflash, edit_env, initialise
from tests.support.commands import run_command
from tests.support.debian import program
from tests.support.ports import free_port


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    place = tmp_path / "vision"
    initialise("--profile", "cpu", "--runtime", "native", "--port", str(free_port()), at=place)
    return place


def test_promtool_accepts_what_is_exported(deployment: Path, tmp_path: Path) -> None:
    ran = dflash("monitor", "export", "../out", "--json", at=deployment).succeeded()
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


def rules_of_baseline(deployment: Path, out: Path) -> list[str]:
    """The expressions of the baseline in a new export."""
    dflash("monitor", "export", str(out), at=deployment).succeeded()
    done = run_command(str(program("promtool")), "check", "config", str(out / "prometheus.yml"))
    assert done.returncode == 0, done.stdout + done.stderr
    groups = yaml.safe_load((out / "baseline.yaml").read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


def test_the_baseline_is_that_of_the_last_bench_of_the_same_models_and_engine(deployment: Path, tmp_path: Path) -> None:
    plan = plan_of(Deployment(deployment))
    pair, engine = plan.pair.name, f"{plan.engine.engine} {plan.engine_version}"
    measured: dict[str, Any] = {"pair": pair, "engine": engine, "settings": settings_of(plan)}
    keep(deployment, figures(**measured))
    # 5 ms at one and 5.5 ms at four sequences without drafts
    (expr,) = rules_of_baseline(deployment, tmp_path / "out")
    assert expr.startswith("0.005 + 0.000166667 * ")
    assert len(expr.split(" + ")) == 3
    # a later run without a baseline leaves it
    keep_figures(Deployment(deployment), json.dumps(figures(**measured)), baseline=True)
    keep_figures(Deployment(deployment), json.dumps(figures(drafters=(True,), **measured)), baseline=False)
    assert rules_of_baseline(deployment, tmp_path / "out") == [expr]
    (deployment / ".dflash" / LAST_BASELINE).unlink()
    for other in (figures(**{**measured, "engine": "vllm 0.1"}), figures(drafters=(True,), **measured)):
        keep(deployment, other)
        assert not rules_of_baseline(deployment, tmp_path / "out")
    (deployment / ".dflash" / "bench.json").unlink()
    assert not rules_of_baseline(deployment, tmp_path / "out")


def test_a_baseline_of_another_deployment_is_named_and_not_taken(deployment: Path, tmp_path: Path) -> None:
    measured = {**settings_of(plan_of(Deployment(deployment))), "TENSOR_PARALLEL_SIZE": "2"}
    keep_baseline(deployment, settings=measured)
    ran = dflash("monitor", "export", str(tmp_path / "out"), at=deployment).succeeded()
    said = " ".join(ran.err.split())
    assert "no baseline for `dflash:speedup_over_plain`" in said
    assert "measured TENSOR_PARALLEL_SIZE=2; `dflash-deploy bench --baseline` measures this one" in said
    assert yaml.safe_load((tmp_path / "out" / "baseline.yaml").read_text()) == {"groups": []}


@pytest.mark.parametrize("name", ["docker-compose.yaml", "prometheus.yml", "alerts.yaml", ".env"])
def test_a_file_of_a_person_is_not_replaced(deployment: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text("mine: true\n")
    ran = dflash("monitor", "export", str(out), at=deployment)
    assert ran.code is ExitCode.USAGE
    assert f"{name} exists, and `monitor export` did not write it" in ran.err
    assert [path.name for path in out.iterdir()] == [name]
    assert (out / name).read_text() == "mine: true\n"
    assert not Deployment(deployment).further_keys


def test_the_files_of_a_deployment_are_not_replaced(deployment: Path) -> None:
    ran = dflash("monitor", "export", ".", at=deployment)
    assert ran.code is ExitCode.USAGE
    assert ".env exists, and `monitor export` did not write it" in ran.err


def test_receivers_and_ports_are_kept_and_a_changed_file_is_noticed(deployment: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    dflash("monitor", "export", str(out), at=deployment).succeeded()
    receivers, ports = out / "alertmanager" / "alertmanager.yml", out / ".env"
    kept = {path: path.read_text() for path in (ports, out / "grafana.password")}
    dflash("monitor", "export", str(out), at=deployment).succeeded()
    assert {path: path.read_text() for path in kept} == kept
    receivers.write_text("mine: true\n")
    ports.write_text(ports.read_text().replace("NODE_PORT=9100", "NODE_PORT=9200"))
    dflash("monitor", "export", str(out), at=deployment).succeeded()
    assert receivers.read_text() == "mine: true\n"
    assert "NODE_PORT=9200" in ports.read_text()
    assert "127.0.0.1:9200" in (out / "prometheus.yml").read_text()
    digests = {re.findall("(?m)^FILES=(.+)", text)[0] for text in (kept[ports], ports.read_text())}
    assert len(digests) == 2
    ports.write_text(ports.read_text().replace("NODE_PORT=9200", "NODE_PORT=box"))
    refused = dflash("monitor", "export", str(out), at=deployment)
    assert refused.code is ExitCode.USAGE
    assert "NODE_PORT=`box` is not a valid port" in refused.err


@pytest.mark.parametrize(
    ("out", "said"), [(".dflash/out", "is a directory of a deployment"), (".env/out", "cannot be written")]
)
def test_what_cannot_be_written_is_a_usage_error(deployment: Path, out: str, said: str) -> None:
    ran = dflash("monitor", "export", out, at=deployment)
    assert ran.code is ExitCode.USAGE
    assert said in ran.err
    assert not Deployment(deployment).further_keys


def test_files_are_written_without_docker(tmp_path: Path) -> None:
    place, environment = tmp_path / "vision", {"PATH": str(tmp_path), "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    initialise("--profile", "cpu", "--engine", "llamacpp", "--runtime", "compose", at=place)
    ran = dflash("monitor", "export", str(tmp_path / "out"), "--json", at=place, environment=environment).succeeded()
    assert ran.document["data"]["key_added"]
    assert (tmp_path / "out" / "metrics.key").read_text().strip() == Deployment(place).further_keys[0].key
    # that a removed key is refused must be proven
    assert dflash("keys", "revoke", "prometheus", at=place, environment=environment).code is ExitCode.PREFLIGHT


def test_a_key_with_that_name_that_opens_more_is_not_given_out(deployment: Path, tmp_path: Path) -> None:
    dflash("keys", "add", "prometheus", "--scope", "all", at=deployment).succeeded()
    ran = dflash("monitor", "export", str(tmp_path / "out"), at=deployment)
    assert ran.code is ExitCode.USAGE
    assert "opens more than /metrics" in ran.err
    assert not (tmp_path / "out" / "metrics.key").exists()


def test_the_endpoint_is_asked_for_as_clients_reach_it(deployment: Path, tmp_path: Path) -> None:
    edit_env(deployment, DFLASH_DOMAIN="box.internal")
    dflash("monitor", "export", str(tmp_path / "out"), at=deployment).succeeded()
    document = yaml.safe_load((tmp_path / "out" / "prometheus.yml").read_text())
    (endpoint,) = (job for job in document["scrape_configs"] if job["job_name"] == "dflash-endpoint")
    assert endpoint["params"]["target"] == ["https://box.internal/health"]
    # Caddy's own authority signs a name of a private network
    assert "expr: vector(7200)" in (tmp_path / "out" / "limits.yaml").read_text()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("up",), ExitCode.PREFLIGHT, "Docker is not installed"),
        (("test",), ExitCode.USAGE, "Alertmanager does not run, so no alert is sent"),
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
    addresses = {"prometheus": "", "alertmanager": "", "grafana": ""}
    assert data == {**addresses, "targets": [], "firing": [], "receivers": []}
    assert "does not run" in dflash("monitor", "status", at=deployment).succeeded().out
    assert not dflash("monitor", "down", "--json", at=deployment).succeeded().document["data"]["stopped"]
