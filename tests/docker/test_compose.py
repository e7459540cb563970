"""The same through Docker: real Compose, the real image on a stand-in base, the real engine inside."""

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import ExitCode
from dflash_deploy.serve.gateway.health import HUNG_AFTER, MEMORY
from dflash_deploy.serve.settings import Settings
from tests.support.cli import dflash, edit_env, initialise
from tests.support.commands import wait_until
from tests.support.composed import closed_in, composed, docker, inspected, is_new, key_is_hidden
from tests.support.container_engine import Engine
from tests.support.faults import Fault, Patient, shows
from tests.support.onlooker import seen_by_another_user
from tests.support.ports import free_port


@pytest.fixture(scope="module")
def deployment(base_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """`init` and `up` with Compose; the image is built on the way."""
    with composed(tmp_path_factory.mktemp("compose"), base_image) as made:
        yield made


@pytest.fixture
def container(deployment: Deployment) -> dict[str, Any]:
    """What `docker inspect` says of the engine's container."""
    return inspected(deployment)


def test_all_checks_pass(deployment: Deployment) -> None:
    data = dflash("test", "--json", at=deployment.directory).succeeded().document["data"]
    statuses = {check["name"]: check["status"] for check in data["checks"]}
    # the tiny pair reads colours and calls no tools; tests/engine has it by name
    assert {name for name, status in statuses.items() if status == "skipped"} == {
        "digit",
        "shape",
        "tools",
        "reasoning",
    }
    assert set(statuses.values()) == {"passed", "skipped"}
    assert data["acceptance_length"] > 3


def test_up_twice_changes_nothing(deployment: Deployment, container: dict[str, Any]) -> None:
    data = dflash("up", "--json", at=deployment.directory).succeeded().document["data"]
    assert data["changed"] is False
    assert docker("inspect", "--format", "{{.Id}}", container["Id"]).strip() == container["Id"]


def test_status_is_what_docker_says(deployment: Deployment, container: dict[str, Any]) -> None:
    data = dflash("status", "--json", at=deployment.directory).succeeded().document["data"]
    assert (data["state"], data["restarts"]) == ("ready", 0)
    assert data["engine"].split()[0] == container["Id"][: len(data["engine"].split()[0])]
    assert 0.5 < data["memory_gib"] < 8


def test_plain_docker_compose_works_in_the_directory(deployment: Deployment, container: dict[str, Any]) -> None:
    subprocess.run(["docker", "compose", "up", "-d"], cwd=deployment.directory, check=True, capture_output=True)
    assert docker("inspect", "--format", "{{.Id}}", container["Id"]).strip() == container["Id"]


def test_the_container_is_closed_in(container: dict[str, Any]) -> None:
    closed_in(container)


def test_the_key_is_nowhere_that_docker_shows(deployment: Deployment) -> None:
    """What happens to a key in a container that runs: tests/docker/test_keys.py, with llama.cpp."""
    key_is_hidden(deployment)
    seen = seen_by_another_user()
    assert "/models/target" in seen, "the engine's processes are not among those that are seen"
    assert deployment.key.reveal() not in seen


def test_the_container_says_what_it_is(container: dict[str, Any]) -> None:
    labels = container["Config"]["Labels"]
    assert labels["dev.dflash.profile"] == "cpu"
    assert labels["dev.dflash.pair"] == "tiny"
    assert labels["org.opencontainers.image.title"] == "dflash-deploy vLLM"


def test_the_health_check_says_yes(container: dict[str, Any]) -> None:
    docker("exec", container["Id"], "python3", "-m", "dflash_deploy.serve.gateway.health")


STOP_THE_CORE = """
import os, pathlib, signal
for entry in pathlib.Path("/proc").glob("[0-9]*"):
    if (entry / "cmdline").read_bytes().startswith(b"VLLM::EngineCore"):
        os.kill(int(entry.name), signal.SIGSTOP)
        print(entry.name)
"""


CORE_HANGS = Fault(
    "an engine whose core hangs: /health returns 200, but requests get no answer",
    "a real container",
    "status",
    60,
    ("unresponsive", "got no answer"),
    ExitCode.DONE,
    "not needed: its health check ends it, and Docker restarts it",
)


@shows(CORE_HANGS)
def test_an_engine_that_hangs_and_listens_is_started_anew(deployment: Deployment, container: dict[str, Any]) -> None:
    """The core is stopped; the server before it goes on answering /health with 200."""
    check = ["docker", "exec", container["Id"], "python3", "-m", "dflash_deploy.serve.gateway.health"]
    assert docker("exec", container["Id"], "python3", "-c", STOP_THE_CORE).strip()
    # an idle engine is asked every five minutes, and Docker's own check may just have done that
    docker("exec", container["Id"], "rm", "--force", str(MEMORY))
    said, patient = [], Patient(deployment.directory)
    with ThreadPoolExecutor() as meanwhile:
        looked = meanwhile.submit(patient.notices, CORE_HANGS)
        for _ in range(HUNG_AFTER + 2):
            done = subprocess.run(check, capture_output=True, text=True, check=False)
            said.append(done.stdout.strip())
            if "killed the engine" in said[-1] or done.returncode == 137:
                break
        looked.result()
    # Docker's own check may come in between and count too
    assert any(line.startswith("dflash: checks without progress:") for line in said), said
    before = container["State"]["StartedAt"]
    assert wait_until(lambda: is_new(inspected(deployment)["State"], before), 300)
    # it is the same container, and it answers again
    dflash("up", at=deployment.directory).succeeded()
    assert docker("inspect", "--format", "{{.RestartCount}}", container["Id"]).strip() == "1"
    patient.recovers(CORE_HANGS)


def test_logs_are_the_engines(deployment: Deployment) -> None:
    out = dflash("logs", at=deployment.directory).succeeded().out
    assert "dflash: vLLM 0.32.0: vllm serve /models/target" in out
    assert len(dflash("logs", "--tail", "3", at=deployment.directory).succeeded().out.splitlines()) == 3


def test_settings_of_the_shell_do_not_reach_the_container(deployment: Deployment, container: dict[str, Any]) -> None:
    ran = dflash(
        "up", "--json", at=deployment.directory, environment={Settings.max_model_len.name: "64", "DFLASH_PORT": "1"}
    )
    assert ran.succeeded().document["data"]["changed"] is False


def test_down_removes_the_container_and_leaves_weights_and_settings(deployment: Deployment) -> None:
    dflash("down", at=deployment.directory).succeeded()
    project = f"label=com.docker.compose.project={deployment.project_name}"
    assert docker("ps", "-aq", "--filter", project).strip() == ""
    assert docker("volume", "ls", "-q", "--filter", project).strip() != ""
    assert deployment.env_file.exists()
    assert Path(deployment.values["MODEL_HOST_PATH"], "model.safetensors").exists()
    assert dflash("status", "--json", at=deployment.directory).document["data"]["state"] == "absent"


def test_an_image_without_dflash_is_not_built(engine: Engine, base_image: str, tmp_path: Path) -> None:
    initialise("--profile", "cpu", "--runtime", "compose", "--port", str(free_port()), at=tmp_path)
    (tmp_path / "Dockerfile").write_text(
        f"FROM {base_image}\nRUN rm $(python3 -c 'import importlib.util as u; print(u.find_spec(\"vllm\").origin)' "
        "| xargs dirname)/v1/spec_decode/dflash.py\n"
    )
    docker("build", "-t", "dflash-standin/without-dflash", "-f", str(tmp_path / "Dockerfile"), str(tmp_path))
    edit_env(tmp_path, DFLASH_BASE_IMAGE="dflash-standin/without-dflash", DFLASH_IMAGE="dflash-deploy/vllm:never")
    ran = dflash("up", at=tmp_path)
    assert ran.code is ExitCode.NOT_READY
    assert "v1/spec_decode/dflash.py is missing" in ran.err
