"""A program that stops reading the progress of a start does not end the start."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_deploy.cli.display import LONGEST_LINE, Terminal
from dflash_deploy.startup.progress import StartProgress
from tests.support.schemas import problems
from tools.pictures.terminal import record


def test_a_reader_that_goes_away_does_not_end_what_is_under_way(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from dflash_deploy.startup.progress import StartProgress\n"
        "from dflash_deploy.cli.display import Terminal\n"
        "from dflash_deploy.cli.streams import install\n"
        "install()\n"
        "with Terminal(json_stream=True).starting() as show:\n"
        "    for number in range(50):\n"
        "        show(StartProgress(f'phase {number}', 0.0, 'x' * 5000, usual=None, usual_in_phase=None))\n"
        "        time.sleep(0.01)\n"
        "open(sys.argv[1], 'w').write('went on')\n"
    )
    place = tmp_path / "done"
    command = [sys.executable, "-c", program, str(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = json.loads(process.stdout.readline())
        assert (first["phase"], problems(first)) == ("phase 0", [])
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (0, "")
    assert place.read_text() == "went on"


def test_a_line_of_progress_in_a_pipe_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    with Terminal().starting() as show:
        show(StartProgress("loading", 1.0, "configuration " + "x" * 5000, usual=None, usual_in_phase=None))
        show(StartProgress("ready", 2.0, "a short line", usual=None, usual_in_phase=None))
    long, short = capsys.readouterr().err.splitlines()
    assert len(long) == LONGEST_LINE
    assert (long.startswith("    1 s  loading: configuration xxx"), long[-1]) == (True, "…")
    assert short == "    2 s  ready: a short line"


def test_on_a_terminal_a_check_replaces_the_line_that_said_how_long_it_takes(tmp_path: Path) -> None:
    program = (
        "import time\n"
        "from dflash_deploy.cli.streams import install\n"
        "install()\n"
        "from dflash_deploy.checks.check import CheckResult\n"
        "from dflash_deploy.cli.display import Terminal\n"
        "reporter = Terminal(results_on_stdout=True)\n"
        "with reporter.working('checking', quiet=0.05):\n"
        "    time.sleep(0.5)\n"
        "    reporter.checked(CheckResult('one', 'passed', 0.5, 'fine', ''))\n"
    )
    lines = [line.text for line in record((sys.executable, "-c", program), at=tmp_path, columns=110)]
    assert [line.split()[:2] for line in lines if line.strip()] == [["passed", "one"]]
