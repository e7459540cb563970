"""Engines that are lost and commands that are cut short: what is said of it, and that the same command goes on."""

import json
import os
import re
import signal
import sys
from pathlib import Path

import pexpect
import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash
from tests.support.commands import wait_until
from tests.support.faults import Fault, Patient, shows
from tests.support.procfs import family_of
from tests.support.server import Server
from tests.support.streams import WHOLE, Crowd

pytestmark = pytest.mark.restarts

# In their order. A busy machine goes through several of them between two commands.
PHASES = [
    "starting vLLM|reading the configuration",
    "starting the engine process",
    "loading the (?:target|drafter)",
    "sizing the KV cache|warming up",
    "opening the endpoint|first generation",
]

WIDTH = 100
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

CORE_KILLED = Fault(
    "the engine's core is killed while it answers 32 clients",
    "the real engine",
    "status",
    20,
    ("exited", "the engine's core exited without a message while it served", "dmesg"),
    ExitCode.DONE,
    "`up`",
)
NOTHING_LISTENS = Fault(
    "nothing listens on the endpoint any more",
    "the real engine",
    "test --only live,text",
    20,
    ("nothing answers on", "dflash-deploy status"),
    ExitCode.NOT_READY,
    "`up`",
)


@shows(CORE_KILLED, NOTHING_LISTENS)
def test_a_lost_engine_is_seen_and_up_goes_on_whatever_cuts_it_short(drafting: Server) -> None:
    patient, supervisor = Patient(drafting.directory), process_of(drafting)
    (core,) = [one for one in family_of(lambda one: one.pid == supervisor) if one.name.startswith("VLLM::EngineCore")]
    with drafting.connect() as endpoint, Crowd(endpoint, drafting.key, 32) as clients:
        core.signal(signal.SIGKILL)
        ended = clients.ended(within=60)
    print(f"{clients.whole} whole answers, then: {dict(ended)}")
    assert WHOLE not in ended
    assert wait_until(lambda: not Path(f"/proc/{supervisor}").exists(), 300)
    patient.notices(CORE_KILLED)
    patient.notices(NOTHING_LISTENS)

    lose_power(drafting)
    engines = interrupt_each_phase(drafting)
    said, code = ended_of(up(drafting))
    assert code == ExitCode.DONE
    assert "endpoint  http://127.0.0.1:" in CONTROL.sub("", said)
    # what Ctrl-C and kill left went on loading: it is one engine from the first command to the last
    assert engines == {process_of(drafting)}
    # a live line is drawn over, and never longer than the terminal is wide
    live = [part for part in CONTROL.sub("", said).replace("\n", "\r").split("\r") if " s  " in part]
    assert max(map(len, live), default=0) <= WIDTH
    patient.recovers(CORE_KILLED)
    patient.recovers(NOTHING_LISTENS)


def lose_power(server: Server) -> None:
    """The command, engine and supervisor end at once while it loads, and nobody writes down how."""
    running = up(server)
    running.expect(PHASES[1])
    os.kill(running.pid, signal.SIGKILL)
    os.killpg(process_of(server), signal.SIGKILL)
    ended_of(running)
    assert dflash("status", "--json", at=server.directory).succeeded().document["data"]["state"] == "exited"


def interrupt_each_phase(server: Server) -> set[int]:
    """Start it as often as there are phases to be seen, and end the command in each, by Ctrl-C and by kill in turn."""
    engines, later, interrupted = set(), PHASES, 0
    while later:
        running = up(server)
        # in this deployment it has started before, so it says how long that took
        shown = [rf"(?:{phase})(?: \d+/\d+)?  \d+ (?:of about \d+ )?s" for phase in later]
        found = running.expect([*shown, pexpect.EOF])
        if found == len(later):
            # the rest was over before it was looked at
            running.close()
            assert running.exitstatus == ExitCode.DONE
            break
        later = later[found + 1 :]
        interrupted += 1
        engines.add(process_of(server))
        if interrupted % 2:
            running.sendintr()
            said, code = ended_of(running)
            assert code == ExitCode.INTERRUPTED
            assert "run the same command to continue" in said
        else:
            os.kill(running.pid, signal.SIGKILL)
            assert ended_of(running)[1] is None
    assert interrupted >= 2
    return engines


def up(server: Server) -> "pexpect.spawn[str]":
    """The command on a terminal."""
    variables = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "COLUMNS"}}
    return pexpect.spawn(
        sys.executable,
        ["-m", "dflash_deploy", "up"],
        cwd=str(server.directory),
        env={**variables, "TERM": "xterm-256color"},
        dimensions=(30, WIDTH),
        encoding="utf-8",
        timeout=600,
    )


def ended_of(command: "pexpect.spawn[str]") -> tuple[str, int | None]:
    """What it wrote since it was last looked at, and its exit code; `None` where a signal ended it."""
    command.expect(pexpect.EOF)
    command.close()
    return command.before or "", command.exitstatus


def process_of(server: Server) -> int:
    """The supervisor of the engine."""
    return int(json.loads((Deployment(server.directory).state / "run.json").read_text())["pid"])
