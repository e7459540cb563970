"""Files that an option names are written whole, and never over a deployment, a device or a link to one."""

import os
import resource
import tarfile
from pathlib import Path

import pytest

from dflash_deploy.deployment.files import OWN, check_output, write_archive, write_output
from dflash_deploy.errors import BadInput, PreflightRefused


@pytest.mark.parametrize("name", [*OWN, ".dflash/run.json", ".dflash/build/x"])
def test_a_deployments_own_files_are_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("VLLM_API_KEY=mine")
    link = tmp_path / "report.xml"
    link.symlink_to(file)
    for place in (file, link, tmp_path / "." / name):
        with pytest.raises(BadInput, match="a file of a deployment"):
            write_output(place, "text")
    assert file.read_text() == "VLLM_API_KEY=mine"
    assert not os.path.lexists(tmp_path / "new" / name)


def test_what_is_not_a_regular_file_is_refused_and_stays(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "directory").mkdir()
    (tmp_path / "device").symlink_to("/dev/null")
    (tmp_path / "dangling").symlink_to("missing")
    (tmp_path / "loop").symlink_to("loop")
    before = {file.name: os.lstat(file).st_mode for file in tmp_path.iterdir()}
    places = [Path("/dev/null"), Path("/dev/stdout"), tmp_path / "missing/x", tmp_path / ("x" * 300), tmp_path / "a\0b"]
    for place in (*tmp_path.iterdir(), *places):
        with pytest.raises(BadInput, match="cannot be written"):
            write_output(place, "text")
    assert {file.name: os.lstat(file).st_mode for file in tmp_path.iterdir()} == before


def test_a_file_behind_a_link_is_replaced_and_keeps_its_mode(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("before")
    real.chmod(0o600)
    link.symlink_to(real)
    write_output(link, "after")
    assert (link.is_symlink(), real.read_text(), real.stat().st_mode & 0o777) == (True, "after", 0o600)
    assert check_output(tmp_path / "new") == tmp_path / "new"


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("before")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, limit[1]))
    try:
        for name in ("old", "new"):
            with pytest.raises(PreflightRefused, match="too large"):
                write_output(tmp_path / name, "x" * 2**17)
        with pytest.raises(PreflightRefused, match="too large"):
            write_archive(tmp_path / "bundle.tar.gz", {"engine.log": os.urandom(2**17).hex()})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert [file.name for file in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text() == "before"


def test_an_archive_is_whole_and_not_in_the_state_of_a_deployment(tmp_path: Path) -> None:
    write_archive(tmp_path / "x.tar.gz", {"a": "text"})
    with tarfile.open(tmp_path / "x.tar.gz") as archive:
        assert archive.getnames() == ["x/a"]
    with pytest.raises(BadInput, match="a file of a deployment"):
        write_archive(tmp_path / ".env", {"a": "text"})
