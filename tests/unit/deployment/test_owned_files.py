"""Files that belong to the owner of a deployment, also if root writes them."""

import os
from pathlib import Path

import pytest

from dflash_deploy.deployment import front
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import write_if_changed
from dflash_deploy.deployment.front import make_owned, write_owned
from dflash_deploy.errors import BadInput


def test_a_linked_directory_is_not_written_through(tmp_path: Path) -> None:
    deployment, elsewhere = Deployment(tmp_path / "box"), tmp_path / "elsewhere"
    deployment.directory.mkdir()
    elsewhere.mkdir()
    file = deployment.directory / ".dflash" / "door" / "Caddyfile"
    assert write_owned(deployment, file, "a site")
    file.unlink()
    file.parent.rmdir()
    file.parent.symlink_to(elsewhere)
    with pytest.raises(BadInput, match="door is a link"):
        write_owned(deployment, file, "a site")
    assert not list(elsewhere.iterdir())


def test_a_directory_that_becomes_a_link_meanwhile_is_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment, elsewhere = Deployment(tmp_path / "box"), tmp_path / "elsewhere"
    deployment.directory.mkdir()
    elsewhere.mkdir()
    file = deployment.directory / ".dflash" / "door" / "Caddyfile"
    moved = tmp_path / "moved"

    def swapped(path: Path, text: str, *, mode: int) -> bool:
        # as the owner of the deployment can do at any moment
        file.parent.rename(moved)
        file.parent.symlink_to(elsewhere)
        return write_if_changed(path, text, mode=mode)

    monkeypatch.setattr(front, "write_if_changed", swapped)
    assert write_owned(deployment, file, "a site")
    assert not list(elsewhere.iterdir())
    assert (moved / "Caddyfile").read_text() == "a site"


def test_a_file_that_is_a_link_is_replaced(tmp_path: Path) -> None:
    deployment, other = Deployment(tmp_path / "box"), tmp_path / "other"
    other.write_text("a site")
    file = deployment.directory / ".dflash" / "door" / "Caddyfile"
    file.parent.mkdir(parents=True)
    file.symlink_to(other)
    assert write_owned(deployment, file, "a site")
    assert not file.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o600
    assert not write_owned(deployment, file, "a site")


def test_directories_below_each_other_are_private(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "box")
    deployment.directory.mkdir()
    inner = deployment.state / "door" / "data"
    make_owned(deployment, inner)
    make_owned(deployment, inner)
    assert {path.stat().st_mode & 0o777 for path in (inner, inner.parent)} == {0o700}
    inner.rmdir()
    inner.write_text("a file")
    with pytest.raises(NotADirectoryError):
        make_owned(deployment, inner)


def test_a_linked_state_directory_is_followed_only_if_this_user_made_the_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment, disk = Deployment(tmp_path / "box"), tmp_path / "disk"
    deployment.directory.mkdir()
    disk.mkdir()
    deployment.state.symlink_to("../disk")
    file = deployment.state / "door" / "Caddyfile"
    assert write_owned(deployment, file, "a site")
    assert (disk / "door" / "Caddyfile").read_text() == "a site"
    if os.geteuid() == 0:
        os.lchown(deployment.state, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    maker = deployment.state.lstat().st_uid
    with pytest.raises(BadInput, match=f"is a link that user {maker} made") as raised:
        write_owned(deployment, file, "another site")
    assert raised.value.hint
    assert (disk / "door" / "Caddyfile").read_text() == "a site"
