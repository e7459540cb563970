"""`up` on a real terminal: what it shows of each phase, and that the same command goes on after Ctrl-C and kill -9."""

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash
from tests.support.ports import free_port

PHASES = [
    "starting the engine process",
    "loading the target",
    "sizing the KV cache|warming up",
    "opening the endpoint|first generation",
]
"""In their order. Those between them may pass within one look."""

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Path]:
    dflash("init", "--profile", "cpu", "--runtime", "native", "--port", str(free_port()), at=tmp_path).succeeded()
    yield tmp_path
    dflash("down", at=tmp_path).succeeded()


def up(directory: Path) -> "pexpect.spawn[str]":
    """The command on a terminal of 100 columns."""
    variables = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "COLUMNS"}}
    return pexpect.spawn(
        sys.executable,
        ["-m", "dflash_deploy", "up"],
        cwd=str(directory),
        env={**variables, "TERM": "xterm-256color"},
        dimensions=(30, 100),
        encoding="utf-8",
        timeout=90,
    )


def engine_of(directory: Path) -> str:
    return str(dflash("status", "--json", at=directory).succeeded().document["data"]["engine"])


def test_ctrl_c_and_kill_at_each_phase_and_the_same_command_goes_on(deployment: Path) -> None:
    engines = set()
    for number, phase in enumerate(PHASES):
        running = up(deployment)
        running.expect(rf"({phase})\S*\s+(\d+) of about (\d+) s")
        if number % 2:
            # as when a session is lost
            os.kill(running.pid, signal.SIGKILL)
            running.expect(pexpect.EOF)
            running.close()
            assert running.signalstatus == signal.SIGKILL
        else:
            running.sendintr()
            running.expect(pexpect.EOF)
            running.close()
            assert running.exitstatus == ExitCode.INTERRUPTED
            assert "hint:" in CONTROL.sub("", running.before or "")
        engines.add(engine_of(deployment))
    running = up(deployment)
    running.expect(pexpect.EOF)
    running.close()
    assert running.exitstatus == ExitCode.DONE
    shown = CONTROL.sub("", running.before or "")
    assert "endpoint  http://127.0.0.1:" in shown
    # what Ctrl-C and kill left went on loading: it is one engine from the first command to the last
    engines.add(engine_of(deployment))
    assert len(engines) == 1


def test_the_line_is_one_line_and_leaves_nothing_behind(deployment: Path) -> None:
    running = up(deployment)
    running.expect("loading the target")
    time.sleep(1)
    running.sendintr()
    running.expect(pexpect.EOF)
    screen = (running.before or "").split("\n")
    running.close()
    # the live line is drawn over, never longer than the terminal, and wiped at the end
    drawn = [CONTROL.sub("", part) for line in screen for part in line.split("\r")]
    assert max(map(len, drawn)) <= 100
    assert "\x1b[2K" in "".join(screen)
