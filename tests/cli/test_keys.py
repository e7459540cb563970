"""`keys show` and `keys rotate` where no engine runs; tests/engine has the rest."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.lock import command_lock
from dflash_deploy.errors import ExitCode, NotPossible
from dflash_deploy.operations.keys import add_key
from dflash_deploy.redact import Secret
from tests.support.cli import dflash, edit_env, initialise

NOWHERE = {"DOCKER_HOST": "unix:///nowhere/docker.sock"}


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    initialise("--profile", "cpu", "--runtime", "native", at=tmp_path)
    return tmp_path


def key_of(directory: Path) -> str:
    return Deployment(directory).key.reveal()


def test_show_says_where_the_key_stands_and_not_what_it_is(deployment: Path) -> None:
    for options in ([], ["--json"]):
        ran = dflash("keys", "show", *options, at=deployment).succeeded()
        assert str(deployment / ".env") in ran.out
        assert Secret(key_of(deployment)).fingerprint in ran.out
        assert key_of(deployment) not in ran.out + ran.err


def test_reveal_prints_the_key_alone(deployment: Path) -> None:
    ran = dflash("keys", "show", "--reveal", at=deployment).succeeded()
    assert (ran.out, ran.err) == (f"{key_of(deployment)}\n", "")


def test_no_document_holds_the_key(deployment: Path) -> None:
    ran = dflash("keys", "show", "--reveal", "--json", at=deployment)
    assert ran.code is ExitCode.USAGE
    assert key_of(deployment) not in ran.out + ran.err


def test_rotate_changes_the_key_and_nothing_else(deployment: Path) -> None:
    with (deployment / ".env").open("a") as env:
        env.write("\n# a note of mine\nNCCL_DEBUG=INFO")
    before, old = (deployment / ".env").read_bytes(), key_of(deployment)
    data = dflash("keys", "rotate", "--json", at=deployment).succeeded().document["data"]
    new = key_of(deployment)
    assert (deployment / ".env").read_bytes() == before.replace(old.encode(), new.encode())
    assert len(new) == 43
    assert new != old
    assert (data["fingerprint"], data["old_fingerprint"]) == (Secret(new).fingerprint, Secret(old).fingerprint)
    assert (data["restarted"], data["proof"]) == (False, None)


def test_the_old_key_stays_nowhere_in_env(deployment: Path) -> None:
    old = key_of(deployment)
    extra = f"'--lora-modules {old} {old}-longer'"
    edit_env(deployment, DFLASH_API_KEYS=f"key-of-a-colleague-0123456789,{old}", EXTRA_ARGS=extra)
    with (deployment / ".env").open("a") as env:
        env.write(f"\n# the key is {old}\n")
    ran = dflash("keys", "rotate", at=deployment).succeeded()
    new, text = key_of(deployment), (deployment / ".env").read_text()
    assert f"DFLASH_API_KEYS=key-of-a-colleague-0123456789,{new}\n" in text
    assert f"--lora-modules {new} {old}-longer" in text
    assert f"# the key is {new}\n" in text
    assert text.count(old) == 1
    assert "in DFLASH_API_KEYS, EXTRA_ARGS, which had the old key" in ran.out


def test_neither_key_is_printed(deployment: Path) -> None:
    for options in ([], ["--json"]):
        old = key_of(deployment)
        ran = dflash("keys", "rotate", *options, at=deployment).succeeded()
        for key in (old, key_of(deployment)):
            assert key not in ran.out + ran.err


def test_it_says_who_needs_the_new_key(deployment: Path) -> None:
    out = dflash("keys", "rotate", at=deployment).succeeded().out
    assert "OPENAI_API_KEY" in out
    assert "`dflash-deploy up` starts one with the new key" in out


@pytest.mark.parametrize("key", ["", "short", "'with a blank in between'"])
def test_a_key_that_up_refuses_is_replaced(deployment: Path, key: str) -> None:
    edit_env(deployment, VLLM_API_KEY=key)
    assert "dflash-deploy keys rotate" in dflash("up", at=deployment).err
    assert dflash("keys", "show", "--reveal", at=deployment).code is ExitCode.USAGE
    data = dflash("keys", "rotate", "--json", at=deployment).succeeded().document["data"]
    # a fingerprint of something short could be guessed back
    assert data["old_fingerprint"] is None
    assert Deployment(deployment).key_is_sound


def test_an_env_that_others_could_read_is_private_after_it(deployment: Path) -> None:
    (deployment / ".env").chmod(0o644)
    assert "chmod 600" in dflash("keys", "show", at=deployment).succeeded().out
    dflash("keys", "rotate", at=deployment).succeeded()
    assert (deployment / ".env").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="ONLY ROOT WRITES FOR OTHERS: nobody else can change the owner of a file")
def test_what_root_rotates_stays_its_owners(deployment: Path) -> None:
    # the container runs as the owner of .env: one that root took over would make it run as root
    os.chown(deployment / ".env", 1234, 2345)
    dflash("keys", "rotate", at=deployment).succeeded()
    status = (deployment / ".env").stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (1234, 2345, 0o600)


def test_behind_a_link_the_old_key_is_gone_too(deployment: Path, tmp_path: Path) -> None:
    old, real = key_of(deployment), tmp_path / "kept-elsewhere"
    (deployment / ".env").rename(real)
    (deployment / ".env").symlink_to(real)
    dflash("keys", "rotate", at=deployment).succeeded()
    assert (deployment / ".env").is_symlink()
    assert old not in real.read_text()


def test_one_rotation_at_a_time(deployment: Path) -> None:
    before = (deployment / ".env").read_bytes()
    with command_lock(Deployment(deployment), "up"):
        ran = dflash("keys", "rotate", at=deployment)
    assert ran.code is ExitCode.PREFLIGHT
    assert "is in use by another command" in ran.err
    assert (deployment / ".env").read_bytes() == before


def test_where_nobody_can_say_whether_an_engine_runs_nothing_changes(deployment: Path) -> None:
    edit_env(deployment, DFLASH_RUNTIME="compose")
    before = (deployment / ".env").read_bytes()
    ran = dflash("keys", "rotate", at=deployment, environment=NOWHERE)
    assert ran.code is ExitCode.PREFLIGHT
    assert "Docker does not respond" in ran.err
    assert (deployment / ".env").read_bytes() == before


def test_killed_at_any_moment_there_is_a_key(deployment: Path) -> None:
    rotate = [sys.executable, "-m", "dflash_deploy", "keys", "rotate"]
    keys = {key_of(deployment)}
    for delay in (0.3, 0.4, 0.5, 0.6, 0.7):
        process = subprocess.Popen(rotate, cwd=deployment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(delay)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert Deployment(deployment).key_is_sound
        keys.add(key_of(deployment))
    # and the command itself is not stopped by what a killed one left
    dflash("keys", "rotate", at=deployment).succeeded()
    assert key_of(deployment) not in keys


def test_a_name_that_is_taken_or_not_valid_is_refused_before_anything_is_written(deployment: Path) -> None:
    add_key(deployment, "alice")
    before = (deployment / ".env").read_bytes()
    with pytest.raises(NotPossible, match="another key has the name `alice`"):
        add_key(deployment, "alice")
    for name in ("bob smith", "owner", "key-1", "a-key-in-the-wrong-place-0123456789"):
        with pytest.raises(NotPossible, match="its name is not valid") as refused:
            add_key(deployment, name)
        assert name not in str(refused.value.message)
    assert (deployment / ".env").read_bytes() == before
