"""An engine that runs can be seen, closed and stopped, whatever has happened to its settings and its disk."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash
from tests.support.llamacpp_native import init, processes

# Every write to a file fails, as on a full disk.
NO_ROOM = ("prlimit", "--fsize=0")

# No new file gets its content, and a file can be written over: what a full disk does.
FULL = """
import errno
from dflash_deploy.deployment import files
def full(file):
    raise OSError(errno.ENOSPC, "No space left on device")
files._to_disk = full
"""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Path]:
    """A deployment that answers, with a key of Bob."""
    init(tmp_path)
    dflash("up", at=tmp_path).succeeded()
    dflash("keys", "add", "bob", at=tmp_path).succeeded()
    yield tmp_path
    dflash("down", at=tmp_path)


def test_an_engine_is_seen_closed_and_stopped_without_usable_settings_and_without_room(running: Path) -> None:
    # the trial of the new key was this program's own
    usage = dflash("keys", "usage", "--json", at=running).succeeded().document["data"]["keys"]
    assert "bob" not in {one["name"] for one in usage if sum(one["requests"].values())}
    env = running / ".env"
    whole = env.read_text()
    for damaged, cause in (
        (whole + "MAX_NUM_SEQS=many\n", "MAX_NUM_SEQS"),
        (whole + "no setting\n", "cannot be parsed"),
        (None, "no deployment found"),
    ):
        env.unlink() if damaged is None else env.write_text(damaged)
        seen = dflash("status", "--json", at=running).succeeded().document["data"]
        assert (seen["state"], seen["engine"] is None) == ("running", False)
        assert cause in seen["cause"]
        assert dflash("logs", "--tail", "3", at=running).succeeded().out
    env.write_text(whole + "MAX_NUM_SEQS=many\n")
    revoked = dflash("keys", "revoke", "bob", "--json", at=running, first=FULL).succeeded()
    assert revoked.document["data"]["status"] == 401
    assert "bob" not in env.read_text()
    assert env.read_text().endswith("MAX_NUM_SEQS=many\n")
    env.unlink()
    dflash("down", at=running, prefix=NO_ROOM).succeeded()
    assert not [line for line in processes(running).values() if "llamacpp" in line]
    # without an engine there is nothing to see
    assert dflash("status", at=running).code is ExitCode.USAGE
