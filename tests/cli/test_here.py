"""`dflash-deploy` without a command: what is here, and the next command."""

import os
import re
import sys
from pathlib import Path

import pexpect
import pyte
import pytest
from typer.testing import CliRunner

from dflash_deploy.assets import asset
from dflash_deploy.cli.app import COMMANDS, app
from dflash_deploy.cli.here import MEANS
from dflash_deploy.errors import ExitCode
from dflash_deploy.host.gpu import Gpu
from dflash_deploy.host.machine import HostFacts
from dflash_deploy.operations.here import FoundDeployment, look
from tests.support.cli import dflash, edit_env, initialise
from tests.support.machines import LAPTOP, RECORDED, machine

UNKNOWN = machine(Gpu("NVIDIA Tesla K80", "3.7", 12 * 2**30, "470.0"))


def test_a_directory_without_a_deployment_leads_to_init(tmp_path: Path) -> None:
    ran = dflash(at=tmp_path).succeeded()
    assert f"{tmp_path}: no deployment yet" in ran.out
    assert "next       dflash-deploy init" in ran.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "facts"), RECORDED.items())
def test_the_fitting_profile_is_named(name: str, facts: HostFacts, tmp_path: Path) -> None:
    found = look(tmp_path, facts)
    assert getattr(found.fitting, "name", None) == name.removesuffix("-x2" if name == "dgx-spark-x2" else "")
    assert found.next_command == "init"


def test_a_machine_without_a_profile_leads_to_the_list(tmp_path: Path) -> None:
    found = look(tmp_path, UNKNOWN)
    assert found.next_command == "profiles"
    assert "no profile fits this machine: NVIDIA Tesla K80" in str(found.fitting)


def test_a_deployment_with_its_weights_leads_to_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    initialise("--profile", "cpu", "--runtime", "native", at=tmp_path)
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(app, []).output
    assert "serves     tiny with profile cpu, runtime native" in shown
    assert "engine     not running" in shown
    assert "weights    present" in shown
    assert "next       dflash-deploy up" in shown


def test_missing_weights_lead_to_pull(tmp_path: Path) -> None:
    initialise("--profile", "cpu", "--runtime", "native", at=tmp_path)
    edit_env(tmp_path, MODEL_HOST_PATH=str(tmp_path / "missing"))
    found = look(tmp_path, LAPTOP)
    assert isinstance(found.deployed, FoundDeployment)
    assert "missing does not exist" in found.deployed.weights_problem
    assert found.next_command == "pull"


def test_a_deployment_that_cannot_be_used_leads_to_doctor(tmp_path: Path) -> None:
    initialise("--profile", "cpu", "--runtime", "native", at=tmp_path)
    edit_env(tmp_path, DFLASH_PROFILE="rtx-9090")
    ran = dflash(at=tmp_path).succeeded()
    assert "cause      `rtx-9090` is not a known profile" in ran.out
    assert "next       dflash-deploy doctor" in ran.out


def test_on_a_terminal_it_fits_80_columns(tmp_path: Path) -> None:
    initialise("--profile", "cpu", "--runtime", "native", at=tmp_path)
    screen = pyte.Screen(80, 24)
    plain = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    program = f"{sys.executable} -m dflash_deploy"
    output, code = pexpect.run(program, cwd=tmp_path, env=plain, dimensions=(24, 80), withexitstatus=True)
    pyte.ByteStream(screen).feed(output)
    assert code == ExitCode.DONE
    lines = [line.rstrip() for line in screen.display if line.strip()]
    # a line that was too long would begin a line of the screen with its rest
    assert [line.split()[0] for line in lines[-3:]] == ["machine", "next", "dflash-deploy"]


def test_the_next_command_is_always_a_command() -> None:
    assert set(MEANS) <= set(COMMANDS)


@pytest.mark.parametrize("command", ["plan", "doctor"])
def test_a_directory_that_does_not_exist_is_named(command: str, tmp_path: Path) -> None:
    new = "note: new does not exist: this is about a new deployment there"
    # what doctor finds depends on the machine
    assert new in dflash(command, "--dir", "new", at=tmp_path).err
    assert new not in dflash(command, "--dir", ".", at=tmp_path).err


def test_a_directory_with_a_name_that_is_too_long_is_an_error_of_the_user(tmp_path: Path) -> None:
    ran = dflash("plan", "--dir", "x" * 300, at=tmp_path)
    assert ran.code is ExitCode.USAGE
    assert "use a shorter path" in ran.err


def test_next_commands_name_the_directory_of_another_deployment(tmp_path: Path) -> None:
    initialise("--profile", "cpu", "--runtime", "native", at=tmp_path / "mine")
    for at, there in ((tmp_path, " --dir mine"), (tmp_path / "mine", "")):
        option = there.split()
        assert f"`dflash-deploy up{there}` starts it" in dflash("status", *option, at=at).out
        assert f"dflash-deploy keys add alice{there}\n" in dflash("keys", "list", *option, at=at).out
        assert f"dflash-deploy keys show --reveal{there}  " in dflash("keys", "show", *option, at=at).out


def test_the_missing_weights_of_a_bundled_model_are_named_and_not_downloaded(tmp_path: Path) -> None:
    initialise("--profile", "cpu", "--runtime", "native", at=tmp_path)
    bundled = str(asset("models/tiny/target"))
    edit_env(tmp_path, MODEL_HOST_PATH=str(tmp_path / "missing"))
    remedy = f"`dflash-deploy set MODEL_HOST_PATH={bundled}` takes the one which comes with dflash-deploy"
    ran = dflash("up", at=tmp_path)
    assert ran.code is ExitCode.PREFLIGHT
    assert remedy in ran.err
    assert remedy in dflash("doctor", at=tmp_path).out
    edit_env(tmp_path, MODEL_HOST_PATH=bundled, DRAFTER_HOST_PATH="missing", DFLASH_DRAFTER="missing")
    (told,) = re.findall(r"`dflash-deploy (set [^`]*)`", dflash("up", at=tmp_path).err)
    dflash(*told.split(), at=tmp_path).succeeded()
    assert "weights    present" in dflash(at=tmp_path).out


def test_an_engine_that_compiles_nothing_needs_no_room_for_caches(tmp_path: Path) -> None:
    initialise("--profile", "cpu", "--engine", "llamacpp", "--runtime", "native", at=tmp_path)
    assert "weights, image and caches are already on disk" in dflash("doctor", at=tmp_path).out


def test_a_deployment_that_lost_its_settings_is_not_called_none(tmp_path: Path) -> None:
    initialise("--profile", "cpu", "--runtime", "native", at=tmp_path / "mine")
    (tmp_path / "mine" / ".env").unlink()
    assert "nothing was running" in dflash("down", "--dir", "mine", at=tmp_path).succeeded().out
    ran = dflash("status", "--dir", "mine", at=tmp_path)
    assert ran.code is ExitCode.USAGE
    assert "its .env is missing: put it back, or write another one with `dflash-deploy init --dir mine`" in ran.err
