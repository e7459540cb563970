"""A step of a proof that hangs or breaks ends at its limit, with what it started; the next one goes on."""

import time
from pathlib import Path

from tests.support.commands import wait_until
from tools.proof.decide import Here, Step
from tools.proof.run import Session, prove

TOOL = """#!/bin/sh
case "$1" in
init)
    mkdir -p "$3"
    printf 'DFLASH_PROFILE=cpu\\nDFLASH_PAIR=tiny\\nDFLASH_ENGINE=x\\n' > "$3/.env"
    echo '{"data": {}}';;
up) sleep 60 & echo $! > "$3/child"; wait;;
down) touch "$3/went-down";;
*) echo '{"data": {}}';;
esac
"""


def session(place: Path, *commands: str, limit: int = 1) -> Session:
    tool = place / "tool"
    tool.write_text(TOOL)
    tool.chmod(0o755)
    step = Step(name="s", proves="p", kind="deployment", limit=limit, commands=[[one] for one in commands])
    ends = time.monotonic() + limit
    return Session(step, Here(), place / "files", 9, ends, tool=(str(tool),))


def test_a_hang_ends_at_its_limit_with_what_it_started_and_the_deployment_is_stopped(tmp_path: Path) -> None:
    hanging = session(tmp_path, "up", "test", limit=8)
    began = time.monotonic()
    outcome = prove(hanging)
    assert time.monotonic() - began < 55
    assert (outcome.state, [command.code for command in outcome.commands]) == ("timed-out", [0, None, 0])
    assert (hanging.deployment / "went-down").exists()
    child = int((hanging.deployment / "child").read_text())
    wait_until(lambda: not Path(f"/proc/{child}").exists() or " Z " in Path(f"/proc/{child}/stat").read_text(), 60)
    assert prove(session(tmp_path, "test", limit=60)).state == "passed"


def test_a_defect_of_a_step_fails_only_the_step(tmp_path: Path) -> None:
    broken = session(tmp_path, "test", limit=60)
    broken.tool = (str(tmp_path / "missing"),)
    outcome = prove(broken)
    assert outcome.state == "failed"
    assert "FileNotFoundError" in outcome.reason
