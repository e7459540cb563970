"""How long the program takes to start: its version and its help, compared with `docker compose version`."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.rows import Row
from dflash_deploy.cli.app import COMMANDS

REPEATS = 9


def rows() -> Iterator[Row]:
    """Median seconds of each call. Raises OSError or SubprocessError if Docker or its Compose plugin is missing."""
    theirs = _median(["docker", "compose", "version"])
    program = str(Path(sys.executable).with_name("dflash-deploy"))
    calls = [["--version"], ["--help"], *([name, "--help"] for name in COMMANDS)]
    for options in calls:
        target = "0.15 s" if len(options) == 1 else ""
        what = f"dflash-deploy {' '.join(options)}, compared with docker compose version"
        yield Row(what, theirs, _median([program, *options]), "s", target, REPEATS)


def _median(command: list[str]) -> float:
    return statistics.median(_seconds(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL)))


def _seconds(call: Callable[[], object]) -> list[float]:
    times = []
    for _ in range(REPEATS):
        started = time.monotonic()
        call()
        times.append(time.monotonic() - started)
    return times
