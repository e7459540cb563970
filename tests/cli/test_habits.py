"""What people type who know other programs: it is understood, or answered with the command that does it here."""

import subprocess
import sys
from pathlib import Path

import pytest

from dflash_deploy.connect import clients
from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash, initialise


def setting(made: str, name: str) -> str:
    """The value of a setting in the output of `plan`."""
    return next(line for line in made.splitlines() if line.startswith(f"{name}=")).split()[0].partition("=")[2]


@pytest.mark.parametrize(("written", "tokens"), [("1k", "1000"), ("1K", "1024"), ("1500", "1500")])
def test_a_context_may_have_the_unit_that_engines_read(written: str, tokens: str, tmp_path: Path) -> None:
    made = dflash("plan", "--profile", "cpu", "--max-model-len", written, at=tmp_path).succeeded().out
    assert setting(made, "MAX_MODEL_LEN") == tokens
    initialise("--profile", "cpu", "--engine", "llamacpp", at=tmp_path)
    dflash("set", f"MAX_MODEL_LEN={written}", "MAX_NUM_SEQS=1", at=tmp_path).succeeded()
    assert f"--ctx-size {tokens} " in dflash("plan", at=tmp_path).succeeded().out


@pytest.mark.parametrize("written", ["1kk", "k", "0k", "1.5M", "64 k", "99999999K"])
def test_another_unit_is_refused(written: str, tmp_path: Path) -> None:
    assert dflash("plan", "--profile", "cpu", "--max-model-len", written, at=tmp_path).code is ExitCode.USAGE


@pytest.mark.parametrize(("name", "profile"), [("gb10", "dgx-spark"), ("RTX 3090", "rtx-3090"), ("h100", "h100")])
def test_the_name_of_a_gpu_is_its_profile(name: str, profile: str, tmp_path: Path) -> None:
    made = dflash("plan", "--profile", name, at=tmp_path).out
    assert made.startswith(f"profile  {profile}: ")


OTHER_NAMES = [(also, name) for name, one in clients().items() for also in one.also]


def test_a_client_has_the_names_that_people_use(tmp_path: Path) -> None:
    initialise("--profile", "cpu", at=tmp_path)
    for also, name in [*OTHER_NAMES, ("OpenCode", "opencode")]:
        said = dflash("connect", also, at=tmp_path).succeeded().out
        assert said == dflash("connect", name, at=tmp_path).succeeded().out
    assert {also for also, _ in OTHER_NAMES}.isdisjoint(clients())
    assert {"openwebui", "copilot", "roo", "cursor"} <= {also for also, _ in OTHER_NAMES}
    refused = dflash("connect", "opencoed", at=tmp_path)
    assert "did you mean opencode?" in refused.err
    assert "`dflash-deploy connect any`" in refused.err


def test_a_log_in_a_pipe_is_explained(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dflash_deploy", "explain"]
    log = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    done = subprocess.run(command, cwd=tmp_path, input=log, capture_output=True, text=True, check=True)
    assert "out of memory" in done.stdout


@pytest.mark.parametrize("word", ["rm", "uninstall"])
def test_what_removes_things_by_hand_is_named(word: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    home = {"HOME": str(tmp_path)}
    dflash("init", "--profile", "h100", at=tmp_path, environment=home, elsewhere=True).succeeded()
    ran = dflash(word, at=tmp_path, environment=home)
    assert ran.code is ExitCode.USAGE
    for step in (
        "`dflash-deploy down --dir h100`",
        f"`rm -r {tmp_path}/dflash/h100`",
        f"{tmp_path}/models",
        "uninstall",
    ):
        assert step in ran.err
    assert (tmp_path / "dflash" / "h100" / ".env").exists()


def test_the_version_is_a_word_too(tmp_path: Path) -> None:
    said = dflash("version", at=tmp_path).succeeded().out
    assert said == dflash("--version", at=tmp_path).succeeded().out
