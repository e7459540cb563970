"""One command at a time, and no trace of the one before."""

import os
from pathlib import Path

import pytest

from dflash_deploy.deployment import Deployment, command_lock
from dflash_deploy.deployment.files import write_atomically
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
