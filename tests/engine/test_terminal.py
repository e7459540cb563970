"""`up` on a real terminal: what it shows of each phase, and that the same command goes on after Ctrl-C and kill -9."""

import json
import os
import re
import signal
import sys

import pexpect

from dflash_deploy.errors import ExitCode
from dflash_deploy.project import Deployment
from tests.support.cli import dflash
from tests.support.server import Server

PHASES = [
    "starting vLLM|reading the configuration",
    "starting the engine process",
    "loading the (?:target|drafter)",
    "sizing the KV cache|warming up",
    "opening the endpoint|first generation",
]
"""In their order. A busy machine goes through several of them between two commands."""

WIDTH = 100
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def up(server: Server) -> "pexpect.spawn[str]":
    variables = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "COLUMNS"}}
    return pexpect.spawn(
        sys.executable,
        ["-m", "dflash_deploy", "up"],
        cwd=str(server.directory),
        env={**variables, "TERM": "xterm-256color"},
        dimensions=(30, WIDTH),
        encoding="utf-8",
        timeout=120,
    )


def ended(command: "pexpect.spawn[str]") -> tuple[str, int | None]:
    """What it wrote since it was last looked at, and its exit code; `None` where a signal ended it."""
    command.expect(pexpect.EOF)
    command.close()
    return command.before or "", command.exitstatus


def process_of(server: Server) -> int:
    return int(json.loads((Deployment(server.directory).state / "run.json").read_text())["pid"])


def test_a_lost_engine_is_seen_and_up_goes_on_over_ctrl_c_and_kill_in_its_phases(drafting: Server) -> None:
    # as when the power fails: engine and supervisor at once, and nobody writes down how it ended
    lost = process_of(drafting)
    os.killpg(lost, signal.SIGKILL)
    assert dflash("status", "--json", at=drafting.directory).succeeded().document["data"]["state"] == "exited"
    failed = dflash("test", at=drafting.directory)
    assert failed.code is ExitCode.SMOKE_TEST
    assert "failed" in failed.out

    engines, later, interrupted, said = set(), PHASES, 0, ""
    while later:
        running = up(drafting)
        # in this deployment it has started before, so it says how long that took
        shown = [rf"(?:{phase})(?: \d+/\d+)?  \d+ (?:of about \d+ )?s" for phase in later]
        found = running.expect([*shown, pexpect.EOF])
        if found == len(later):
            # the rest was over before it was looked at
            said = running.before or ""
            running.close()
            assert running.exitstatus == ExitCode.DONE
            break
        later = later[found + 1 :]
        interrupted += 1
        engines.add(process_of(drafting))
        if interrupted % 2:
            running.sendintr()
            said, code = ended(running)
            assert code == ExitCode.INTERRUPTED
            assert "the same command goes on" in said
        else:
            os.kill(running.pid, signal.SIGKILL)
            assert ended(running)[1] is None
    assert interrupted >= 2
    said, code = ended(up(drafting))
    assert code == ExitCode.DONE
    assert "endpoint  http://127.0.0.1:" in CONTROL.sub("", said)
    # what Ctrl-C and kill left went on loading: it is one engine from the first command to the last
    assert engines == {process_of(drafting)} != {lost}
    # a live line is drawn over, and never longer than the terminal is wide
    live = [part for part in CONTROL.sub("", said).replace("\n", "\r").split("\r") if " s  " in part]
    assert max(map(len, live), default=0) <= WIDTH
