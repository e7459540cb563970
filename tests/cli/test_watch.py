"""`status --watch`: a line for each window."""

from pathlib import Path

from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash, initialise


def test_it_goes_on_looking_as_long_as_it_is_told(tmp_path: Path) -> None:
    initialise("--profile", "cpu", "--runtime", "native", at=tmp_path)
    lines = dflash("status", "--watch", "1", "--looks", "2", at=tmp_path).succeeded().out.splitlines()
    assert lines[0].split() == ["time", "state", "running", "waiting", "tokens/s", "length", "cache"]
    assert [line.split()[1] for line in lines[1:]] == ["absent", "absent"]
    assert dflash("status", "--watch", "1", "--json", at=tmp_path).code is ExitCode.USAGE
