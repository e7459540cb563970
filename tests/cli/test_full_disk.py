"""A disk without room: exit code 3, the files of before, and nothing beside them."""

import resource
from pathlib import Path

import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.doctor.deployment import half_written
from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash, initialise

# No file may grow beyond these bytes: the lock does not, `.env`, compose.yaml and a bundle do.
ROOM = ("prlimit", "--fsize=400")


@pytest.mark.parametrize("command", ["keys rotate", "render", "logs --bundle report.tar.gz"])
def test_a_full_disk_is_said_and_leaves_what_was_there(command: str, tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    initialise("--profile", "cpu", "--runtime", "native", at=tmp_path)
    with (tmp_path / "compose.yaml").open("a") as file:
        file.write("# a line of an older version\n")
    (tmp_path / ".dflash" / "build" / "images" / "vllm" / "Dockerfile").write_text("FROM an-older-image\n")
    before = contents(tmp_path)
    ran = dflash(*command.split(), at=tmp_path, prefix=ROOM)
    assert ran.code is ExitCode.PREFLIGHT, ran.err
    assert "File too large" in ran.err
    assert contents(tmp_path) == before
    assert not list(half_written(Deployment(tmp_path)))
    dflash(*command.split(), at=tmp_path).succeeded()


def test_init_on_a_full_disk_makes_no_deployment(tmp_path: Path) -> None:
    command = ("init", "--profile", "cpu", "--runtime", "native")
    ran = dflash(*command, at=tmp_path, prefix=ROOM)
    assert ran.code is ExitCode.PREFLIGHT, ran.err
    assert [path.name for path in tmp_path.iterdir()] == [".dflash"]
    assert [path.name for path in (tmp_path / ".dflash").iterdir()] == ["lock"]
    dflash(*command, at=tmp_path).succeeded()


def contents(directory: Path) -> dict[Path, bytes]:
    """Every file, and every directory as an empty one."""
    return {path: path.read_bytes() if path.is_file() else b"" for path in directory.rglob("*")}
