"""llama.cpp through Docker: its real Dockerfile on a substitute of its base image, its real server inside."""

import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash, edit_env
from tests.support.commands import HANGS, wait_until
from tests.support.composed import closed_in, composed, container_of, docker, inspected, key_is_hidden
from tests.support.container_engine import Engine
from tests.support.faults import Fault, Patient, shows
from tests.support.llamacpp_routes import opened
from tests.support.onlooker import seen_by_another_user
from tests.support.standin_llamacpp import ensure_server_image

IMAGE = "dflash-deploy/llamacpp:under-test"
SKIPPED = {"digit", "shape", "tools", "reasoning"}
USER = 1000


@pytest.fixture(scope="module")
def deployment(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """`init` and `up` with Compose as the user 1000; the image is built on the way."""
    directory, base = tmp_path_factory.mktemp("llamacpp"), ensure_server_image()
    owner = USER if os.geteuid() == 0 else None
    with composed(directory, base, "--engine", "llamacpp", image=IMAGE, owner=owner) as made:
        yield made


def test_all_checks_pass(deployment: Deployment) -> None:
    data = dflash("test", "--json", at=deployment.directory).succeeded().document["data"]
    statuses = {check["name"]: check["status"] for check in data["checks"]}
    assert {name for name, status in statuses.items() if status == "skipped"} == SKIPPED
    assert set(statuses.values()) == {"passed", "skipped"}
    assert data["acceptance_length"] > 5


def test_the_container_is_closed_in_and_runs_as_the_owner_of_env(deployment: Deployment) -> None:
    container = inspected(deployment)
    closed_in(container)
    assert container["Config"]["Labels"]["org.opencontainers.image.title"] == "dflash-deploy llama.cpp"
    shown = docker("top", container["Id"], "-eo", "pid,uid,args").splitlines()[1:]
    users = {line.split()[1] for line in shown}
    assert users == {str((deployment.directory / ".env").stat().st_uid)}
    # init, the gateway, and the server
    assert [line for line in shown if "/app/llama-server" in line and "dflash_deploy.serve.door" not in line]
    assert len(shown) == 3


def test_the_engine_runs_with_the_arguments_of_the_plan(deployment: Deployment) -> None:
    planned = dflash("plan", "--json", at=deployment.directory).succeeded().document["data"]["command"]
    shown = docker("top", container_of(deployment), "-eo", "pid,args")
    assert f"/app/llama-server {' '.join(planned[1:])}" in shown
    # the image is for processors only
    assert "gpu" not in shown


def test_only_health_is_open(deployment: Deployment) -> None:
    url = f"http://127.0.0.1:{deployment.values['DFLASH_PORT']}"
    assert opened(url) == {("GET", "/health"), ("HEAD", "/health")}


def test_the_key_is_hidden(deployment: Deployment) -> None:
    key_is_hidden(deployment, IMAGE)
    key = deployment.key.reveal()
    for command in ("status", "logs"):
        ran = dflash(command, at=deployment.directory).succeeded()
        assert key not in ran.out + ran.err
    seen = seen_by_another_user()
    assert "/models/target" in seen, "the engine's processes are not among those that are seen"
    assert key not in seen


def test_a_key_comes_and_goes_while_the_container_runs(deployment: Deployment) -> None:
    before = container_of(deployment)
    for verb, status in (("add", 200), ("revoke", 401)):
        ran = dflash("keys", verb, "alice", "--json", at=deployment.directory).succeeded()
        assert ran.document["data"]["status"] == status
    assert container_of(deployment) == before


def test_the_image_is_what_it_should_be(deployment: Deployment) -> None:
    data = dflash("image", "verify", "--json", at=deployment.directory).succeeded().document["data"]
    assert {check["name"] for check in data["checks"] if check["passed"]} == {
        *("user", "entry point", "health check", "base image", "secrets", "drafter")
    }


def test_status_and_logs_are_the_engines(deployment: Deployment) -> None:
    data = dflash("status", "--json", at=deployment.directory).succeeded().document["data"]
    assert (data["state"], data["restarts"]) == ("ready", 0)
    # nothing that costs speed: it runs on a processor as it should
    assert "costs" not in dflash("status", at=deployment.directory).out
    assert "dflash: llama.cpp: llama-server --model" in dflash("logs", at=deployment.directory).succeeded().out


SIGNAL_THE_SERVER = """
import os, pathlib, sys
for entry in pathlib.Path("/proc").glob("[0-9]*"):
    words = (entry / "cmdline").read_bytes().split(b"\\0")
    if b"/app/llama-server" in words and b"dflash_deploy.serve.door" not in words:
        os.kill(int(entry.name), int(sys.argv[1]))
        print(entry.name)
"""


def signal_the_server(deployment: Deployment, number: int) -> None:
    found = docker("exec", container_of(deployment), "python3", "-c", SIGNAL_THE_SERVER, str(int(number)))
    assert len(found.split()) == 1


def test_docker_restarts_a_server_that_was_killed(deployment: Deployment) -> None:
    before = inspected(deployment)
    signal_the_server(deployment, signal.SIGKILL)
    assert wait_until(lambda: inspected(deployment)["State"]["StartedAt"] != before["State"]["StartedAt"], HANGS)
    dflash("up", at=deployment.directory).succeeded()
    after = inspected(deployment)
    assert (after["Id"], after["RestartCount"]) == (before["Id"], 1)


HEALTH = ("python3", "-m", "dflash_deploy.serve.gateway.health")

HUNG = Fault(
    "llama.cpp's server hangs",
    "a real container",
    "status",
    60,
    ("unresponsive", "GET /health got no answer", "dflash-deploy restart"),
    ExitCode.DONE,
    "remove the cause, or `restart`",
)


@shows(HUNG)
def test_a_server_that_hangs_is_unhealthy(deployment: Deployment) -> None:
    patient, container = Patient(deployment.directory), container_of(deployment)
    assert docker("exec", container, *HEALTH) == ""
    signal_the_server(deployment, signal.SIGSTOP)
    patient.notices(HUNG)
    checked = subprocess.run(["docker", "exec", container, *HEALTH], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (1, "dflash: the engine does not listen\n")
    signal_the_server(deployment, signal.SIGCONT)
    patient.recovers(HUNG)


def test_an_idle_server_ends_and_its_container_stays_healthy(deployment: Deployment) -> None:
    edit_env(deployment.directory, IDLE_MINUTES="0.1")
    dflash("up", at=deployment.directory).succeeded()
    container = container_of(deployment)

    def shown() -> dict[str, Any]:
        data: dict[str, Any] = dflash("status", "--json", at=deployment.directory).succeeded().document["data"]
        return data

    # `status` would ask the engine that is awake, and keep it so
    url = f"http://127.0.0.1:{deployment.values['DFLASH_PORT']}/health"
    assert wait_until(lambda: bool(httpx.get(url).json() == {"status": "asleep"}), HANGS)
    processes = docker("top", container, "-eo", "pid,args").splitlines()
    assert [line for line in processes if "/app/llama-server" in line and "serve.door" not in line] == []
    assert docker("exec", container, *HEALTH) == ""
    assert shown()["state"] == "asleep"
    assert dflash("ask", "What is the capital of France?", at=deployment.directory).succeeded().out.endswith("Paris.\n")
    assert (shown()["state"], container_of(deployment), shown()["restarts"]) == ("ready", container, 0)


def test_down_removes_the_container(deployment: Deployment) -> None:
    dflash("down", at=deployment.directory).succeeded()
    assert container_of(deployment) == ""
    assert dflash("status", "--json", at=deployment.directory).document["data"]["state"] == "absent"
