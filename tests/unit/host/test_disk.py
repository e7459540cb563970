"""Room on disk."""

import shutil
from pathlib import Path

from dflash_deploy.host.machine import bytes_under, disk_room


def test_a_directory_that_is_yet_to_be_made_lies_where_its_parent_does(tmp_path: Path) -> None:
    room = disk_room(tmp_path / "models" / "Qwen")
    assert room is not None
    assert room.directory == tmp_path
    assert abs(room.free - shutil.disk_usage(tmp_path).free) < 2**30


def test_below_a_file_too(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    room = disk_room(tmp_path / "file" / "x")
    assert room is not None
    assert room.device == tmp_path.stat().st_dev


def test_what_is_there_already(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 1000)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b").write_bytes(b"x" * 500)
    (tmp_path / "sub" / "again").hardlink_to(tmp_path / "a")
    (tmp_path / "nowhere").symlink_to("/nowhere/at/all")
    assert bytes_under(tmp_path) == 1500
    assert bytes_under(tmp_path / "a") == 1000
    assert bytes_under(tmp_path / "absent") == 0
