"""Output that is closed, full, in another encoding, or read by a program that ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import ExitCode
from tests.support.cli import Ran, dflash, edit_env, initialise

pytestmark = pytest.mark.slow

COMMAND = f"{sys.executable} -m dflash_deploy"


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    initialise("--profile", "cpu", "--runtime", "native", at=tmp_path)
    return tmp_path


def in_shell(script: str, at: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["bash", "-c", script],
        cwd=at,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("where", [">/dev/full", ">&-", "| true; exit ${PIPESTATUS[0]}", ">/dev/full 2>&1", ">&- 2>&-"])
def test_a_key_that_was_replaced_is_not_reported_as_a_failure(deployment: Path, where: str) -> None:
    old = Deployment(deployment).key
    done = in_shell(f"{COMMAND} keys rotate {where}", deployment)
    assert (done.returncode, "Traceback" in done.stderr) == (ExitCode.DONE, False)
    assert "error" not in done.stderr
    assert Deployment(deployment).key != old


@pytest.mark.parametrize("where", [">/dev/full", ">/dev/full 2>&1", ">&-"])
@pytest.mark.parametrize("command", ["keys add bob", "keys add bob --json"])
def test_what_was_changed_is_not_reported_as_a_failure(deployment: Path, command: str, where: str) -> None:
    done = in_shell(f"{COMMAND} {command} {where}", deployment)
    assert (done.returncode, "Traceback" in done.stderr) == (ExitCode.DONE, False)
    assert "error" not in done.stderr
    assert "bob" in dflash("keys", "list", at=deployment).succeeded().out


@pytest.mark.parametrize(("arguments", "code"), [("profiles list", 3), ("profiles list --json", 3), ("--help", 0)])
def test_a_result_that_cannot_be_written_is_an_error(tmp_path: Path, arguments: str, code: int) -> None:
    done = in_shell(f"{COMMAND} {arguments} >/dev/full", tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)
    assert ("standard output cannot be written: No space left on device" in done.stderr) == bool(code)
    for where in (">&-", "| true; exit ${PIPESTATUS[0]}"):
        done = in_shell(f"{COMMAND} {arguments} {where}", tmp_path)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_log_that_is_followed_ends_with_its_reader(deployment: Path) -> None:
    (deployment / ".dflash" / "engine.log").write_text("a line\n" * 20_000)
    done = in_shell(f"{COMMAND} logs | head -1; exit ${{PIPESTATUS[0]}}", deployment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "a line\n", "")


def test_an_encoding_without_the_characters_is_no_failure(deployment: Path) -> None:
    edit_env(deployment, SERVED_MODEL_NAME="caf\u00e9\u2581")
    for encoding in ("ascii", "latin-1"):
        environment = {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
        done = in_shell(f"{COMMAND} plan --json", deployment, **environment)
        assert done.returncode == 0, done.stderr
        ran = Ran(("plan", "--json"), ExitCode(done.returncode), done.stdout, done.stderr)
        names = [row["value"] for row in ran.document["data"]["settings"] if row["name"] == "SERVED_MODEL_NAME"]
        assert names == ["caf\u00e9\u2581"]
        assert in_shell(f"{COMMAND} plan", deployment, **environment).returncode == 0


def test_control_characters_of_others_do_not_reach_the_terminal(deployment: Path) -> None:
    (deployment / ".dflash" / "engine.log").write_text("red \x1b[31m title \x1b]0;x\x07 turned \u202e end\n")
    shown = dflash("logs", at=deployment).succeeded().out
    assert shown == "red \\x1b[31m title \\x1b]0;x\\x07 turned \\u202e end\n"
    ran = dflash("profiles", "show", "\x1b[31m\u202ered", at=deployment)
    assert "\\x1b[31m\\u202ered" in ran.err
    assert not {"\x1b", "\u202e"} & set(ran.out + ran.err)
    ran = dflash("profiles", "show", "x\u202e" + "y" * 50_000, "--json", at=deployment)
    assert "\u202e" not in ran.out
    assert "x\u202ey" in ran.document["error"]["message"]
    assert "characters)" in ran.document["error"]["message"]
    assert len(ran.err) < 6000


@pytest.mark.parametrize("arguments", ["plan", "status --json", "init --profile cpu", "down"])
def test_a_directory_that_was_deleted_is_an_error_of_the_user(tmp_path: Path, arguments: str) -> None:
    done = in_shell(f"mkdir gone; cd gone; rmdir ../gone; {COMMAND} {arguments}", tmp_path)
    assert done.returncode == ExitCode.USAGE
    assert "the current directory no longer exists" in done.stderr


@pytest.mark.parametrize(
    "arguments", [("bench", "--url", ""), ("status", "--watch", "inf"), ("status", "--watch", "1e10")]
)
def test_odd_arguments_are_an_error_of_the_user(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    ran = dflash(*arguments, at=tmp_path)
    assert ran.code is ExitCode.USAGE
    assert "valid" in ran.err


def test_a_directory_whose_name_is_not_utf8_works(tmp_path: Path) -> None:
    init = f"{COMMAND} init --profile cpu --runtime native --dir $'n\\xff'"
    done = in_shell(f"{init} && cd $'n\\xff' && {COMMAND} status --json && {COMMAND} down", tmp_path)
    assert (done.returncode, "unexpected" in done.stderr) == (0, False), done.stderr


def test_a_full_disk_is_a_condition_of_the_machine_and_keeps_the_key(deployment: Path) -> None:
    before = (deployment / ".env").read_bytes() + b"# longer than the one KiB that may be written\n" * 30
    (deployment / ".env").write_bytes(before)
    done = in_shell(f"ulimit -f 1; {COMMAND} keys rotate", deployment)
    assert (done.returncode, "unexpected" in done.stderr) == (ExitCode.PREFLIGHT, False), done.stderr
    assert (deployment / ".env").read_bytes() == before
