"""What befalls containers: real ones, with the real llama.cpp inside where the fault needs an engine.

What is told of vLLM's own processes: tests/docker/test_compose.py.

The faults stand in an order. Before the engine runs, the cure of one is the state of the next, and one `up` at the end
is the proof for all; the same holds for those that end the running engine.
"""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import ExitCode
from tests.support.cli import Ran, dflash, edit_env, initialise
from tests.support.commands import wait_until
from tests.support.composed import docker, is_new
from tests.support.container_engine import Engine
from tests.support.faults import Fault, Means, Patient, holds, recovered, shows, untouched
from tests.support.ports import free_port
from tests.support.standin_llamacpp import ensure_server_image

IMAGE = "dflash-deploy/llamacpp:faults-under-test"

REAL: Means = "a real container"


@pytest.fixture(scope="module")
def deployment(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A deployment with an image of these very sources, not started yet."""
    directory, base = tmp_path_factory.mktemp("faults"), ensure_server_image()
    told = ("--profile", "cpu", "--engine", "llamacpp", "--runtime", "compose", "--port", str(free_port()))
    initialise(*told, at=directory)
    edit_env(directory, DFLASH_BASE_IMAGE=base, DFLASH_IMAGE=IMAGE)
    dflash("image", "build", at=directory).succeeded()
    yield directory
    dflash("down", at=directory).succeeded()


def container(directory: Path) -> dict[str, Any]:
    """What `docker inspect` says of the engine's container."""
    project = f"label=com.docker.compose.project={Deployment(directory).project_name}"
    inspected: dict[str, Any] = json.loads(docker("inspect", docker("ps", "-aq", "--filter", project).strip()))[0]
    return inspected


def override(directory: Path, **settings: object) -> None:
    """The user's own additions to the service; JSON is YAML."""
    (directory / "compose.override.yaml").write_text(json.dumps({"services": {"engine": settings}}))


UP = "up --patience 4"

NO_DOCKER = Fault(
    "Docker does not respond",
    REAL,
    "up",
    20,
    ("Docker does not respond", "systemctl start docker"),
    ExitCode.PREFLIGHT,
    "start it",
    "to the port",
)


@shows(NO_DOCKER)
def test_docker_that_does_not_answer(deployment: Path) -> None:
    port = int(Deployment(deployment).values["DFLASH_PORT"])
    Patient(deployment, {"DOCKER_HOST": "unix:///nowhere/docker.sock"}).notices(NO_DOCKER)
    with listener(port):
        Patient(deployment).recovers(NO_DOCKER)


@contextmanager
def listener(port: int) -> Iterator[None]:
    """Something else at the port."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen()
        yield


BROKEN_OVERRIDE = Fault(
    "a compose.override.yaml that Compose rejects",
    REAL,
    UP,
    30,
    ("docker compose up failed", "compose.override.yaml"),
    ExitCode.NOT_READY,
    "correct it",
)
ENDS_AT_ONCE = Fault(
    "a container that exits at each start (crash loop)",
    REAL,
    UP,
    30,
    ("it exits soon after each start", "dflash-deploy down"),
    ExitCode.NOT_READY,
    "remove the cause",
)
SAYS_NOTHING = Fault(
    "an engine that hangs while it loads",
    REAL,
    UP,
    30,
    ("has written nothing for 4 s", "--patience"),
    ExitCode.NOT_READY,
    "remove the cause",
)
TOO_LITTLE_MEMORY = Fault(
    "a memory limit that is too small: the kernel kills the engine",
    REAL,
    "up",
    90,
    ("the engine ran out of memory (OOM) and was killed", "raise the container's memory limit"),
    ExitCode.NOT_READY,
    "raise it",
)
KILLED_MEANWHILE = Fault(
    "a container that dies while `up` waits: seconds from its exit to the message",
    REAL,
    "up",
    2,
    ("the engine ended with code 137",),
    ExitCode.NOT_READY,
    "remove the cause",
)


@shows(BROKEN_OVERRIDE, ENDS_AT_ONCE, SAYS_NOTHING, TOO_LITTLE_MEMORY, KILLED_MEANWHILE)
def test_what_keeps_an_engine_from_starting(deployment: Path) -> None:
    patient, additions = Patient(deployment), deployment / "compose.override.yaml"
    additions.write_text("services: [engine")
    patient.notices(BROKEN_OVERRIDE)
    override(deployment, entrypoint=["python3", "-c", "raise SystemExit(9)"])
    patient.notices(ENDS_AT_ONCE)
    override(deployment, entrypoint=["sleep", "300"])
    patient.notices(SAYS_NOTHING)
    with untouched(deployment):
        ran = up_until_killed(deployment)
    holds(KILLED_MEANWHILE, ran)
    override(deployment, mem_limit="30m", memswap_limit="30m")
    patient.notices(TOO_LITTLE_MEMORY)
    additions.unlink()
    ran = dflash("up", at=deployment)
    for fault in (BROKEN_OVERRIDE, ENDS_AT_ONCE, SAYS_NOTHING, TOO_LITTLE_MEMORY, KILLED_MEANWHILE):
        recovered(fault, ran)


def up_until_killed(deployment: Path) -> Ran:
    """`up`, whose container is killed while it waits; the seconds count from the kill to the line that says so."""
    before = container(deployment)["State"]["StartedAt"]
    command = [sys.executable, "-m", "dflash_deploy", "up", "--json-stream"]
    with subprocess.Popen(
        command, cwd=deployment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as waiting:
        assert waiting.stdout is not None
        # the wait has begun
        lines = list(until_phase("starting", waiting.stdout))
        assert is_new(container(deployment)["State"], before)
        docker("kill", container(deployment)["Id"])
        killed = time.monotonic()
        lines += until_phase("stopping", waiting.stdout)
        noticed = time.monotonic() - killed
        out, err = waiting.communicate(timeout=300)
    return Ran(("up", "--json-stream"), ExitCode(waiting.returncode), "".join(lines) + out, err, noticed)


def until_phase(phase: str, stream: Iterable[str]) -> Iterator[str]:
    """The lines of `--json-stream` up to the first of a phase."""
    for line in stream:
        yield line
        if json.loads(line).get("phase") == phase:
            return


@pytest.fixture(scope="module")
def running(deployment: Path) -> Path:
    """The same one, answering."""
    dflash("up", at=deployment).succeeded()
    return deployment


def seen_by_status(name: str, cure: str, *says: str, within: float = 20) -> Fault:
    """What `status` says, whose exit code is 0 whatever it finds."""
    return Fault(name, REAL, "status", within, says, ExitCode.DONE, cure)


PAUSED = seen_by_status("a container that is paused", "`up`", "paused", "its container is paused", "dflash-deploy up")
HANGS = Fault(
    "an endpoint that does not respond",
    REAL,
    "test --only live,text,burst",
    30,
    ("got no answer: timed out", "not run", "3 of 3 checks failed"),
    ExitCode.SMOKE_TEST,
    "remove the cause",
)


@shows(PAUSED, HANGS)
def test_a_paused_container(running: Path) -> None:
    patient = Patient(running)
    before = container(running)
    docker("pause", before["Id"])
    patient.notices(PAUSED)
    patient.notices(HANGS)
    dflash("up", at=running).succeeded()
    # it goes on where it stood, and loads nothing anew
    assert container(running)["State"]["StartedAt"] == before["State"]["StartedAt"]
    patient.recovers(PAUSED)
    patient.recovers(HANGS)


ANOTHER_KEY = seen_by_status(
    "an API key in .env that differs from the running engine's", "`up`, or the old key", "unresponsive", "answered 401"
)


@shows(ANOTHER_KEY)
def test_a_key_that_was_written_and_not_put_into_force(running: Path) -> None:
    key = Deployment(running).key.reveal()
    edit_env(running, VLLM_API_KEY="written-by-hand-and-not-in-force")
    try:
        Patient(running).notices(ANOTHER_KEY)
    finally:
        edit_env(running, VLLM_API_KEY=key)
    Patient(running).recovers(ANOTHER_KEY)


WRONG_VALUE = Fault(
    "a wrong value of an engine argument after a successful start",
    REAL,
    "up",
    180,
    (
        "llama.cpp does not accept --seed as it was given",
        "the engine runs with the last working settings again",
        "--seed none",
    ),
    ExitCode.NOT_READY,
    "correct the setting, or the argument in EXTRA_ARGS",
)


@shows(WRONG_VALUE)
def test_settings_that_do_not_start_are_explained_and_give_way_to_the_last_good_ones(running: Path) -> None:
    before = Deployment(running).values["EXTRA_ARGS"]
    wrong = f"{before} --seed none"
    edit_env(running, EXTRA_ARGS=wrong)
    patient = Patient(running)
    try:
        patient.notices(WRONG_VALUE)
        data = dflash("status", "--json", at=running).succeeded().document["data"]
        assert data["state"] == "ready"
        assert "not those of .env" in data["instead"]
        # what a person wrote is theirs to change
        assert Deployment(running).values["EXTRA_ARGS"] == wrong
        rows = dflash("rollback", "--json", at=running).succeeded().document["data"]["restored"]
        assert rows == ["EXTRA_ARGS"]
        assert "instead" not in dflash("status", "--json", at=running).succeeded().document["data"]
    finally:
        edit_env(running, EXTRA_ARGS=before)
    patient.recovers(WRONG_VALUE)


RESTARTED = Fault(
    "the Docker daemon restarts: in the meantime",
    REAL,
    "status",
    30,
    ("Docker does not respond",),
    ExitCode.PREFLIGHT,
    "not needed: the container restarts with it",
)
CUT_OFF = seen_by_status(
    "a container that was disconnected from its network", "`up`", "cut off", "its container was taken off its network"
)


@shows(RESTARTED, CUT_OFF)
def test_what_ends_a_running_engine(running: Path, engine: Engine) -> None:
    if not engine.ours:
        pytest.skip("NOBODY RESTARTED DOCKER, AND NOTHING ENDED AN ENGINE: the daemon is somebody else's")
    patient = Patient(running)
    started = container(running)["State"]["StartedAt"]
    with engine.interrupted():
        patient.notices(RESTARTED)
    assert wait_until(lambda: is_new(container(running)["State"], started), 300)

    docker("network", "disconnect", f"{Deployment(running).project_name}_default", container(running)["Id"])
    patient.notices(CUT_OFF)
    dflash("up", at=running).succeeded()
    recovered(RESTARTED, patient.recovers(CUT_OFF))
