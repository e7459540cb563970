"""Every kind of file that can be in the place of the expected one is refused at once, with a reason and a hint."""

import os
import stat
from pathlib import Path

import pytest

from dflash_deploy.errors import ExitCode, FileInvalid, FileMissing, FileRefused
from dflash_deploy.intake import files
from dflash_deploy.intake.files import open_file, read_argument, read_bytes, read_text


def test_a_file_of_exactly_the_limit_is_read_and_a_longer_one_refused_with_size_and_limit(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100)
    assert read_bytes(file, limit=100) == b"x" * 100
    with pytest.raises(FileInvalid, match=r"file is too large: 100 bytes \(limit: 99\)"):
        read_bytes(file, limit=99)


def test_a_sparse_file_is_refused_without_being_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with file.open("wb") as content:
        content.truncate(2**40)
    with pytest.raises(FileInvalid, match=f"too large: {2**40} bytes"):
        read_bytes(file)


def test_an_endless_file_of_the_system_is_read_no_further_than_the_limit() -> None:
    with pytest.raises(FileRefused):
        read_bytes(Path("/proc/self/pagemap"), limit=4096)


@pytest.fixture(params=["directory", "FIFO", "device", "link to a device", "socket"])
def oddity(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    place = tmp_path / "file"
    match request.param:
        case "directory":
            place.mkdir()
        case "FIFO":
            os.mkfifo(place)
        case "device":
            return Path("/dev/zero")
        case "link to a device":
            place.symlink_to("/dev/urandom")
        case "socket":
            os.mknod(place, stat.S_IFSOCK | 0o600)
    return place


def test_what_is_not_a_regular_file_is_refused_without_waiting(oddity: Path) -> None:
    with pytest.raises(FileInvalid, match=r"is a (directory|FIFO|device|socket), not a file") as refusal:
        open_file(oddity)
    assert refusal.value.exit_code == ExitCode.USAGE
    assert refusal.value.hint


def test_a_link_is_followed_only_if_wanted(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("text")
    (tmp_path / "link").symlink_to("target")
    assert read_text(tmp_path / "link") == "text"
    with pytest.raises(FileInvalid, match="link is a symbolic link, not a file"):
        read_text(tmp_path / "link", links=False)


def test_a_link_loop_a_long_name_and_a_nul_byte_are_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path / "loop", tmp_path / ("x" * 300), tmp_path / "a\0b"):
        with pytest.raises(FileRefused) as refusal:
            read_bytes(path)
        assert refusal.value.hint
        assert len(refusal.value.message) < 400


def test_a_missing_file_and_one_below_a_file_are_missing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "none", tmp_path / "file" / "none", tmp_path / "none" / "none"):
        with pytest.raises(FileMissing, match="does not exist"):
            read_bytes(path)


def test_text_that_is_not_utf8_is_refused_or_its_bytes_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a\xffb")
    with pytest.raises(FileInvalid, match=r"is not UTF-8 text \(byte 1\)"):
        read_text(tmp_path / "file")
    assert read_text(tmp_path / "file", lossy=True) == "a\ufffdb"


def test_permission_denied_is_refused_with_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")

    def denied(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(FileRefused, match="cannot be read: Permission denied") as refusal:
        read_bytes(tmp_path / "file")
    assert "owner" in refusal.value.hint


def test_a_file_that_the_user_names_may_be_a_pipe(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, "naïve".encode())
    os.close(writer)
    assert read_argument(Path(f"/dev/fd/{reader}")) == "naïve"
    os.close(reader)
    (tmp_path / "file").write_text("text")
    assert read_argument(tmp_path / "file") == "text"


def test_a_pipe_is_read_no_further_than_the_limit() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"x" * 1000)
    with pytest.raises(FileInvalid, match=r"too large: 1000 bytes \(limit: 999\)"):
        read_argument(Path(f"/dev/fd/{reader}"), limit=999)
    os.close(reader)
    os.close(writer)


def test_a_pipe_without_data_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PATIENCE", 0.05)
    os.mkfifo(tmp_path / "file")
    with pytest.raises(FileInvalid, match="is a pipe without data"):
        read_argument(tmp_path / "file")


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom", "/dev/tty", "/"])
def test_a_device_that_the_user_names_is_refused(device: str) -> None:
    with pytest.raises(FileInvalid, match="not a file"):
        read_argument(Path(device))
