"""Supervised processes: each has the state, log and end of its directory."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.redact import Redactor, Secret
from dflash_deploy.runtime.native_process import Invocation, NativeProcess, find_supervised
from tests.processes.runtime.test_supervisor import eventually

KEY = "a-very-secret-key"
SPEAKS = (
    "import sys, time; print('I am', sys.argv[1], 'with', 'a-very-secret-key'); sys.stdout.flush(); time.sleep(600)"
)

Make = Callable[[Path], NativeProcess]


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    deployment = Deployment(tmp_path)
    deployment.write_env({"VLLM_API_KEY": KEY})
    return deployment


@pytest.fixture
def process_in() -> Iterator[Make]:
    made: list[NativeProcess] = []

    def make(state: Path) -> NativeProcess:
        made.append(NativeProcess(state, Redactor([Secret(KEY)]), grace=5.0))
        return made[-1]

    yield make
    for process in made:
        process.down()


def launch(deployment: Deployment, name: str, *, config: str = "one") -> Invocation:
    environment = os.environ | {"DFLASH_SECRETS_FILE": str(deployment.env_file)}
    command = (sys.executable, "-c", SPEAKS, name)
    return Invocation(environment, config, "127.0.0.1:1", deployment.directory, command)


def ignored(line: str) -> None:
    """Takes a line of progress."""


def test_each_process_has_its_own_log_state_and_end(deployment: Deployment, process_in: Make) -> None:
    processes = [process_in(state) for state in (deployment.state, deployment.state / "other")]
    for number, process in enumerate(processes):
        assert process.launch(launch(deployment, f"number {number}"), ignored)
    for number, process in enumerate(processes):
        eventually(lambda number=number, process=process: f"number {number}" in "".join(process.read_log().lines))  # type: ignore[misc]
        assert KEY not in process.log.read_text()
        assert process.log.stat().st_mode & 0o777 == 0o600
    assert [process.log.name for process in processes] == ["engine.log"] * 2
    assert len({process.state().identity for process in processes}) == len(processes)

    processes[1].halt()
    assert [process.state().phase for process in processes] == ["running", "exited"]
    assert processes[1].state().asked
    assert processes[1].launch(launch(deployment, "again"), ignored)
    assert processes[1].log.with_suffix(".log.1").exists()


def test_it_restarts_only_if_its_fingerprint_changed(deployment: Deployment, process_in: Make) -> None:
    process = process_in(deployment.state / "other")
    assert process.launch(launch(deployment, "other"), ignored)
    first = process.state().identity
    assert not process.launch(launch(deployment, "other"), ignored)
    assert process.state().identity == first
    said: list[str] = []
    assert process.launch(launch(deployment, "other", config="two"), said.append)
    assert process.state().identity != first
    assert said == ["settings changed: stopping the running engine"]


def test_a_process_is_found_without_its_files_and_a_killed_one_is_noticed(
    deployment: Deployment, process_in: Make
) -> None:
    state = deployment.state / "other"
    process = process_in(state)
    process.launch(launch(deployment, "two"), ignored)
    pid = json.loads((state / "run.json").read_text())["pid"]
    (state / "run.json").unlink()
    assert process.state().identity == f"process {pid}"
    assert find_supervised(deployment.state) is None
    os.killpg(pid, signal.SIGKILL)
    eventually(lambda: process.state().phase != "running")
    assert process.state().phase in {"exited", "absent"}
