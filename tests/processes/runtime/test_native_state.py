"""A native engine is found and stopped whatever became of the files that describe it."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.runtime.native import NativeRuntime
from dflash_deploy.runtime.native_process import SUPERVISOR, find_supervised
from dflash_deploy.runtime.select import runtime_seen
from tests.processes.runtime.test_supervisor import eventually
from tests.support.cli import dflash
from tests.support.examined import a_plan

ADDRESS = "127.0.0.1:8000"


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    (tmp_path / "box").mkdir()
    deployment = Deployment(tmp_path / "box")
    deployment.write_env({})
    deployment.make_state()
    return deployment


@pytest.fixture
def supervisor(deployment: Deployment) -> Iterator["subprocess.Popen[bytes]"]:
    """A supervisor that runs, and whose engine never starts: it waits for its secrets, which are a FIFO."""
    secrets = deployment.directory.parent / "secrets"
    os.mkfifo(secrets)
    process = subprocess.Popen(
        [sys.executable, "-m", SUPERVISOR, str(deployment.state), "config", ADDRESS],
        env=os.environ | {"DFLASH_SECRETS_FILE": str(secrets)},
        cwd=deployment.directory,
        start_new_session=True,
    )
    eventually((deployment.state / "run.json").exists)
    yield process
    process.kill()
    process.wait()


def empty(file: Path) -> None:
    file.write_bytes(b"")


def directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def loop(file: Path) -> None:
    file.unlink()
    file.symlink_to(file)


def deep(file: Path) -> None:
    file.write_bytes(b"[" * 100_000)


def missing(file: Path) -> None:
    file.unlink()


@pytest.mark.parametrize("damage", [empty, directory, fifo, loop, deep, missing])
def test_a_running_engine_is_found_and_stopped_without_its_run_file(
    deployment: Deployment, supervisor: "subprocess.Popen[bytes]", damage: Callable[[Path], None]
) -> None:
    damage(deployment.state / "run.json")
    said: list[str] = []
    runtime = NativeRuntime(deployment, a_plan(), said.append)
    state = runtime.state()
    assert (state.phase, state.identity, state.address) == ("running", f"process {supervisor.pid}", ADDRESS)
    assert len(said) == (damage is not missing)
    assert runtime.down()
    assert supervisor.wait(60) is not None
    assert NativeRuntime(deployment, a_plan()).state().phase == "absent"
    assert not runtime.down()


@pytest.mark.parametrize("damage", [empty, directory, fifo, loop, deep])
def test_an_engine_that_ended_with_a_damaged_exit_file_has_ended_with_an_unknown_code(
    deployment: Deployment, supervisor: "subprocess.Popen[bytes]", damage: Callable[[Path], None]
) -> None:
    supervisor.kill()
    supervisor.wait()
    (deployment.state / "exit.json").write_text("{}")
    damage(deployment.state / "exit.json")
    said: list[str] = []
    runtime = NativeRuntime(deployment, a_plan(), said.append)
    assert (runtime.state().phase, runtime.state().exit_code) == ("exited", None)
    assert len(said) == 1
    assert not runtime.down()
    assert runtime.state().phase == "absent"


def test_a_supervisor_of_another_deployment_is_not_found(
    deployment: Deployment, supervisor: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    assert find_supervised(deployment.state) is not None
    (tmp_path / "other" / ".dflash").mkdir(parents=True)
    assert find_supervised(tmp_path / "other" / ".dflash") is None


def test_a_supervisor_is_found_through_a_link_to_its_directory(
    deployment: Deployment, supervisor: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(deployment.directory)
    found = find_supervised(tmp_path / "link" / ".dflash")
    assert found is not None
    assert found.process.pid == supervisor.pid


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that every user can read."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        yield Path(place)


def test_a_process_of_another_user_is_not_believed(open_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the client would send its API key to the address in these arguments; a directory of root's, for any user's tests
    state, nobody = Path("/usr"), 65534 if os.geteuid() == 0 else None
    # a shell that runs a script of this name has the arguments of a supervisor
    (open_path / SUPERVISOR).write_text("sleep 60")
    process = subprocess.Popen(
        ["python", "-m", SUPERVISOR, str(state), "config", ADDRESS],
        executable="/bin/sh",
        cwd=open_path,
        user=nobody,
    )
    try:
        eventually(lambda: SUPERVISOR in Path(f"/proc/{process.pid}/cmdline").read_text())
        monkeypatch.setattr(os, "geteuid", lambda: Path(f"/proc/{process.pid}").stat().st_uid)
        assert find_supervised(state) is not None
        monkeypatch.setattr(os, "geteuid", lambda: 2**31)
        assert find_supervised(state) is None
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("content", [b"", b"\0" * 3000], ids=["empty", "NUL bytes"])
def test_without_settings_the_engine_is_found_by_its_process(
    deployment: Deployment, supervisor: "subprocess.Popen[bytes]", content: bytes
) -> None:
    # as a power cut may leave it
    deployment.env_file.write_bytes(content)
    with (deployment.state / "engine.log").open("a") as log:
        log.write("what the engine said\n")
    assert "what the engine said" in dflash("logs", at=deployment.directory).succeeded().out
    if not content:
        data = dflash("status", "--json", at=deployment.directory).succeeded().document["data"]
        assert (data["runtime"], data["engine"]) == ("native", f"process {supervisor.pid}")
    assert dflash("down", "--json", at=deployment.directory).succeeded().document["data"]["stopped"] is True
    assert supervisor.wait(60) is not None
    assert dflash("down", "--json", at=deployment.directory).succeeded().document["data"]["stopped"] is False


def test_the_runtime_is_that_of_a_container_if_there_is_one(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[object] = [None]
    monkeypatch.setattr("dflash_deploy.runtime.compose.find_container", lambda *_: found[0])
    monkeypatch.setattr("dflash_deploy.runtime.docker.docker_client", lambda: None)
    assert runtime_seen(deployment) == "compose"
    (deployment.state / "engine.log").touch()
    assert runtime_seen(deployment) == "native"
    found[0] = object()
    assert runtime_seen(deployment) == "compose"


def test_a_copy_of_the_directory_is_another_deployment(
    deployment: Deployment, supervisor: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    """`down` in a copy stopped the engine of the original."""
    shutil.copytree(deployment.directory, tmp_path / "copy")
    copy = Deployment(tmp_path / "copy")
    assert NativeRuntime(copy, a_plan()).state().phase == "absent"
    assert not NativeRuntime(copy, a_plan()).down()
    assert supervisor.poll() is None
    assert NativeRuntime(deployment, a_plan()).state().phase == "running"


@pytest.mark.parametrize("older", [False, True])
def test_a_renamed_directory_keeps_its_engine(
    deployment: Deployment, supervisor: "subprocess.Popen[bytes]", tmp_path: Path, older: bool
) -> None:
    if older:
        run = deployment.state / "run.json"
        run.write_text(
            json.dumps({name: value for name, value in json.loads(run.read_text()).items() if name != "place"})
        )
        shutil.copytree(deployment.directory, tmp_path / "copy")
        assert NativeRuntime(Deployment(tmp_path / "copy"), a_plan()).state().phase == "absent"
    deployment.directory.rename(tmp_path / "renamed")
    renamed = NativeRuntime(Deployment(tmp_path / "renamed"), a_plan())
    assert renamed.state().phase == "running"
    assert renamed.down()
    assert supervisor.wait(60) is not None


def test_a_compose_project_keeps_its_name_if_its_directory_is_renamed_and_not_if_it_is_copied(
    deployment: Deployment, tmp_path: Path
) -> None:
    name = deployment.project_name
    deployment.keep_project_name()
    shutil.copytree(deployment.directory, tmp_path / "copy")
    deployment.directory.rename(tmp_path / "renamed")
    assert Deployment(tmp_path / "renamed").project_name == name
    copy = Deployment(tmp_path / "copy")
    assert copy.project_name != name
    copy.keep_project_name()
    (tmp_path / "copy").rename(tmp_path / "another")
    assert Deployment(tmp_path / "another").project_name == copy.project_name
