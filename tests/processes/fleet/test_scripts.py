"""The scripts that run on a host, in the shell of this machine with a home directory of their own."""

import hashlib
import os
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dflash_deploy import __version__
from dflash_deploy.features.fleet import scripts
from dflash_deploy.features.fleet.file import FleetHost
from dflash_deploy.features.fleet.prepare import parse_examined

CONTENT = b"VLLM_API_KEY=secret\n"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def run(words: list[str], home: Path, content: bytes = b"", *, prefix: tuple[str, ...] = ()) -> tuple[int, str, str]:
    environment = {**os.environ, "HOME": str(home)}
    done = subprocess.run([*prefix, *words], input=content, capture_output=True, check=False, env=environment)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def files(home: Path) -> set[str]:
    return {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()}


def test_a_file_is_written_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    for said in ("written\n", "same\n"):
        assert run(scripts.receive("~/place/.env", DIGEST), tmp_path, CONTENT) == (0, said, "")
    file = tmp_path / "place" / ".env"
    assert file.read_bytes() == CONTENT
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert files(tmp_path) == {"place/.env", "place/.fleet.lock"}


def test_the_settings_of_before_are_kept(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / ".env").write_text("mine")
    (tmp_path / "place" / ".env").chmod(0o600)
    assert run(scripts.receive("place/.env", DIGEST), tmp_path, CONTENT)[0] == 0
    last = tmp_path / "place" / ".env.last"
    assert last.read_text() == "mine"
    assert stat.S_IMODE(last.stat().st_mode) == 0o600


@pytest.mark.parametrize("there", [None, "old"])
def test_a_file_that_arrives_incomplete_changes_nothing(there: str | None, tmp_path: Path) -> None:
    target = tmp_path / "file"
    if there is not None:
        target.write_text(there)
    code, _, _ = run(scripts.receive(str(target), DIGEST), tmp_path, CONTENT[:5])
    assert code == scripts.DAMAGED
    assert files(tmp_path) == {".fleet.lock"} | ({"file"} if there else set())
    assert there is None or target.read_text() == there


def test_a_file_that_a_killed_sender_left_is_written_over(tmp_path: Path) -> None:
    (tmp_path / ".file.fleet").write_text("half of it")
    assert run(scripts.receive("file", DIGEST), tmp_path, CONTENT)[0] == 0
    assert run(scripts.receive("file", DIGEST), tmp_path, CONTENT)[1] == "same\n"
    assert files(tmp_path) == {"file", ".fleet.lock"}


def test_a_file_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    content = b"x" * 100_000
    words = scripts.receive("file", hashlib.sha256(content).hexdigest())
    code, _, err = run(words, tmp_path, content, prefix=("prlimit", "--fsize=4096"))
    assert code == scripts.NO_DIRECTORY, err
    assert files(tmp_path) == {".fleet.lock"}


def test_this_machine_is_examined(tmp_path: Path) -> None:
    code, out, err = run(scripts.examine(), tmp_path)
    assert (code, err) == (0, "")
    found = parse_examined(out, 0.0)
    assert found is not None
    assert found.home == str(tmp_path)
    assert found.system.startswith("Linux ")
    assert found.free > 0
    assert found.lacks == ()


@pytest.mark.parametrize(
    ("version", "code", "said"),
    [(__version__, 0, "--dir x $(id)\n"), ("0.0.9", scripts.OTHER_VERSION, "")],
)
def test_only_this_version_is_run(version: str, code: int, said: str, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "dflash-deploy"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo dflash-deploy {version} || echo "$@"\n')
    program.chmod(0o755)
    host = FleetHost(name="a", address="x", program="~/bin/dflash-deploy")
    ended = run(scripts.run(host, "", "--dir", "x", "$(id)"), tmp_path)
    assert ended[:2] == (code, said)
    assert ("other version: dflash-deploy 0.0.9" in ended[2]) == bool(code)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    assert run(scripts.run(FleetHost(name="a", address="x"), "env", "up"), tmp_path)[0] == scripts.ABSENT


@contextmanager
def sleeping(lock: Path, *, holds: bool) -> Iterator[subprocess.Popen[bytes]]:
    """A process with the lock file open or not; the lock file says that it is an `up`."""
    lock.parent.mkdir(parents=True)
    script = f"exec 9>>{lock}; exec sleep 60" if holds else "exec sleep 60"
    process = subprocess.Popen(["sh", "-c", script], stdin=subprocess.DEVNULL)
    lock.touch()
    lock.write_text(f"up, process {process.pid}, since 2026-01-01 00:00:00 UTC")
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_only_the_start_that_holds_the_lock_is_interrupted(tmp_path: Path) -> None:
    with sleeping(tmp_path / "place" / ".dflash" / "lock", holds=True) as start:
        # it may not have opened its file yet
        while start.poll() is None:
            assert run(scripts.interrupt("~/place"), tmp_path) == (0, "", "")
            time.sleep(0.02)
        assert start.returncode == -signal.SIGINT


def test_another_process_with_the_number_of_a_start_is_left_alone(tmp_path: Path) -> None:
    with sleeping(tmp_path / "place" / ".dflash" / "lock", holds=False) as other:
        assert run(scripts.interrupt("~/place"), tmp_path) == (0, "", "")
        time.sleep(0.1)
        assert other.poll() is None


def test_no_start_is_no_error(tmp_path: Path) -> None:
    assert run(scripts.interrupt("~/place"), tmp_path) == (0, "", "")
    lock = tmp_path / "place" / ".dflash" / "lock"
    lock.parent.mkdir(parents=True)
    for text in ("", "down, process 1, since x", "up, process 999999999, since x"):
        lock.write_text(text)
        assert run(scripts.interrupt("~/place"), tmp_path) == (0, "", "")


def test_settings_and_a_release_that_changed_since_the_start_are_seen(tmp_path: Path) -> None:
    env = tmp_path / "place" / ".env"

    def compared() -> tuple[int, str, str]:
        return run(scripts.compare_settings("~/place", "0.1.0-index"), tmp_path)

    assert run(scripts.mark_settings("~/place", "0.1.0-index"), tmp_path) == (0, "", "")
    assert compared() == (0, "other\n", "")
    env.parent.mkdir()
    env.write_text("A=1\n")
    assert compared() == (0, "other\n", "")
    assert run(scripts.mark_settings("~/place", "0.1.0-index"), tmp_path) == (0, "", "")
    assert compared() == (0, "same\n", "")
    # gateways read further keys again
    env.write_text("A=1\nDFLASH_API_KEYS=alice:0123456789abcdef\n")
    assert compared() == (0, "same\n", "")
    # another release or wheel
    assert run(scripts.compare_settings("~/place", "0.1.1-index"), tmp_path) == (0, "other\n", "")
    env.write_text("A=2\n")
    assert compared() == (0, "other\n", "")
    assert files(tmp_path) == {"place/.env", "place/.dflash/started-together"}


def test_whether_a_host_has_a_deployment_needs_no_program(tmp_path: Path) -> None:
    assert run(scripts.deployed("~/place"), tmp_path) == (0, "no\n", "")
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / ".env").write_text("")
    for written in ("~/place", "place", str(tmp_path / "place")):
        assert run(scripts.deployed(written), tmp_path) == (0, "yes\n", "")
