"""`status --watch`: a line for each window."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash, initialise


def test_it_goes_on_looking_as_long_as_it_is_told(tmp_path: Path) -> None:
    initialise("--profile", "cpu", "--runtime", "native", at=tmp_path)
    lines = dflash("status", "--watch", "1", "--looks", "2", at=tmp_path).succeeded().out.splitlines()
    assert lines[0].split() == ["time", "state", "running", "waiting", "tokens/s", "length", "cache"]
    assert [line.split()[1] for line in lines[1:]] == ["absent", "absent"]
    assert dflash("status", "--watch", "1", "--json", at=tmp_path).code is ExitCode.USAGE


def test_without_a_value_it_looks_every_two_seconds(tmp_path: Path) -> None:
    initialise("--profile", "cpu", "--runtime", "native", at=tmp_path)
    for arguments in (("--watch", "--looks", "2"), ("--looks", "2", "--watch")):
        ran = dflash("ps", *arguments, at=tmp_path).succeeded()
        assert len(ran.out.splitlines()) == 3
        assert ran.seconds >= 2


def test_ctrl_c_is_how_it_ends(tmp_path: Path) -> None:
    initialise("--profile", "cpu", "--runtime", "native", at=tmp_path)
    command = [sys.executable, "-m", "dflash_deploy", "status", "--watch"]
    pipe = subprocess.PIPE
    unbuffered = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True, env=unbuffered) as watch:
        assert watch.stdout is not None
        assert watch.stderr is not None
        assert watch.stdout.readline().startswith("time")
        assert "absent" in watch.stdout.readline()
        watch.send_signal(signal.SIGINT)
        said = watch.stderr.read()
    assert (watch.returncode, said) == (ExitCode.DONE, "")
