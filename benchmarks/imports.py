"""CPU time of each command from its start to its end, compared with an earlier commit of this repository."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

from benchmarks.rows import Row
from tests.support.ports import free_port

REPEATS = 7

# The commit to compare with; by default the last one before all input from outside was bounded and validated.
BEFORE = os.environ.get("DFLASH_BENCH_BEFORE", "69f44f9")

ROOT = Path(__file__).parents[1]

CALLS = (
    "--version",
    "--help",
    "status --help",
    "up --help",
    "bench --help",
    "test --help",
    "status",
    "plan",
    "doctor",
    "connect opencode",
    "logs",
    "down",
    "render",
    "keys show",
    "profiles list",
    "models list",
)


def rows() -> Iterator[Row]:
    """The smallest CPU time of each call, both versions in turn, in a deployment whose engine does not run."""
    with tempfile.TemporaryDirectory() as folder:
        places = {"before": Path(folder, "before"), "now": ROOT}
        command = ["git", "archive", "--format=zip", BEFORE]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
        with zipfile.ZipFile(BytesIO(done.stdout)) as archive:
            archive.extractall(places["before"])
        for name, place in places.items():
            Path(folder, name, "deployment").mkdir(parents=True, exist_ok=True)
            init = ["init", "--profile", "cpu", "--runtime", "native", "--port", str(free_port())]
            _seconds(place, Path(folder, name, "deployment"), init)
        for call in CALLS:
            times: dict[str, list[float]] = {name: [] for name in places}
            for _ in range(REPEATS):
                for name, place in places.items():
                    times[name].append(_seconds(place, Path(folder, name, "deployment"), call.split()))
            what = f"dflash-deploy {call}, CPU time compared with {BEFORE}"
            yield Row(what, min(times["before"]), min(times["now"]), "s", "1.05 or less", REPEATS)


def _seconds(place: Path, deployment: Path, arguments: list[str]) -> float:
    """User and system time of one call of the program in `place`, its children included."""
    environment = {**os.environ, "PYTHONPATH": str(place)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "dflash_deploy", *arguments]
    subprocess.run(command, cwd=deployment, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
