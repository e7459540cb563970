"""One command at a time, and no trace of the one before."""

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import OWN, new_file, remove_leftovers, write_atomically
from dflash_deploy.deployment.lock import command_lock
from dflash_deploy.errors import DirectoryBusy, PreflightRefused


def test_the_second_is_told_who_holds_it(tmp_path: Path) -> None:
    first, second = (command_lock(Deployment(tmp_path), command) for command in ("up", "down"))
    with first, pytest.raises(DirectoryBusy, match=f"up, process {os.getpid()}, since 20"):
        second.__enter__()


def test_after_a_failure_it_is_free(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), command_lock(Deployment(tmp_path), "up"):
        raise KeyboardInterrupt
    with command_lock(Deployment(tmp_path), "up"):
        pass


def test_where_nothing_can_be_written_it_is_said_before_anything_else(tmp_path: Path) -> None:
    (tmp_path / ".dflash").write_text("not a directory")
    with pytest.raises(PreflightRefused, match=r"\.dflash cannot be written"), command_lock(Deployment(tmp_path), "up"):
        raise AssertionError


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old", mode=0o600)
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new \ud800", mode=0o600)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("failure", [None, KeyboardInterrupt, PreflightRefused("refused", hint="")])
def test_a_command_that_ended_is_not_one_that_did_not_finish(
    tmp_path: Path, failure: BaseException | type[BaseException] | None
) -> None:
    deployment = Deployment(tmp_path)
    with suppress(KeyboardInterrupt, PreflightRefused), command_lock(deployment, "rollback"):
        assert (deployment.state / "lock").read_text().startswith("rollback, process ")
        if failure is not None:
            raise failure
    assert (deployment.state / "lock").read_bytes() == b""


def test_what_killed_commands_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    state = deployment.make_state()
    left = [tmp_path / f".{name}.0a1b2c3d" for name in OWN]
    left += [state / ".last-good.env.deadbeef", state / "build.4711" / "x", state / "build.4711.old" / "x"]
    kept = [tmp_path / name for name in (".env", "..env.backup", ".notes.0a1b2c3d", "..env.0a1b2c3d4")]
    for file in left + kept:
        file.parent.mkdir(exist_ok=True)
        file.write_text("VLLM_API_KEY=a-key")
    # one of a writer that still runs, such as the supervisor of an engine
    held = state / ".exit.json.0a1b2c3d"
    with held.open("w"), command_lock(deployment, "up"):
        assert not held.exists()
    with held.open("w") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        with command_lock(deployment, "up"):
            assert held.exists()
    assert not [file for file in left if file.exists()]
    assert all(file.exists() for file in kept)
    assert not list(state.glob("build*"))


def test_the_file_of_a_writer_is_locked_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tidied(descriptor: int) -> None:
        # as another command does meanwhile
        remove_leftovers(tmp_path, "*")

    monkeypatch.setattr(os, "fsync", tidied)
    write_atomically(tmp_path / "file", "text", mode=0o600)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_new_file_replaces_none_also_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    for name, linkless in (("a", False), ("b", True)):
        if linkless:
            monkeypatch.setattr(os, "link", unsupported)
        with new_file(tmp_path / name, mode=0o600) as file:
            file.write(b"whole")
            assert not (tmp_path / name).exists()
        with pytest.raises(FileExistsError), new_file(tmp_path / name, mode=0o600) as file:
            file.write(b"another")
        with pytest.raises(KeyboardInterrupt), new_file(tmp_path / "c", mode=0o600):
            raise KeyboardInterrupt
        assert (tmp_path / name).read_bytes() == b"whole"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a", "b"]
