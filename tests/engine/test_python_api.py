"""The program of docs/reference/python-api.md, run as it is printed there, with the real engine and the tiny pair."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.api_example import program
from tests.support.cli import dflash
from tests.support.ports import free_port

pytestmark = pytest.mark.engine


def test_the_program_of_the_manual_starts_checks_measures_and_stops(tmp_path: Path) -> None:
    # another deployment may listen on the port that the manual names
    source = program().replace("port=8010", f"port={free_port()}")
    try:
        done = subprocess.run(
            [sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True, timeout=1800, check=False
        )
    finally:
        # a program that was killed has not stopped its engine
        dflash("down", "--dir", "demo", at=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("engine: vLLM")
    assert "start: ready" in lines
    assert "test: passed" in lines
    assert [line.partition(",")[0] for line in lines if line.startswith("bench: ")] == [
        "bench: concurrency 1",
        "bench: concurrency 2",
    ]
    assert lines[-1] == "stopped: True"
    assert done.stderr == ""
