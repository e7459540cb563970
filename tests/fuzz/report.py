"""Runs the fuzzers as processes, adds up their counts, and shows them by kind and class."""

import json
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.fuzz.judge import CLASSES

HEADINGS = ("inputs", "refused", *CLASSES)


@dataclass
class Totals:
    """The counts by kind, and the findings. `problems` are processes that ended in another way."""

    rows: dict[str, dict[str, float]] = field(default_factory=dict)
    findings: list[Mapping[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, lines: Iterable[str]) -> None:
        """Add the JSON documents that a process printed."""
        for line in lines:
            if not line.startswith("{"):
                continue
            document = json.loads(line)
            if "problem" in document:
                self.findings.append(document)
                continue
            row = self.rows.setdefault(document["kind"], dict.fromkeys((*HEADINGS, "slowest", "peak"), 0.0))
            for name in HEADINGS:
                row[name] += document[name]
            for name in ("slowest", "peak"):
                row[name] = max(row[name], document[name])

    @property
    def inputs(self) -> int:
        """Different inputs of all kinds."""
        return int(sum(row["inputs"] for row in self.rows.values()))

    def table(self) -> str:
        """A table in Markdown: a row for each kind, and one with the sums. Columns without findings are left out."""
        sums = {name: sum(row[name] for row in self.rows.values()) for name in HEADINGS}
        shown = [name for name in HEADINGS if name in {"inputs", "refused"} or sums[name]]
        lines = ["| document | " + " | ".join(shown) + " |", "|---" * (len(shown) + 1) + "|"]
        for kind, row in (*self.rows.items(), ("all", sums)):
            lines.append(f"| {kind} | " + " | ".join(f"{row[name]:,.0f}" for name in shown) + " |")
        return "\n".join(lines)

    def summary(self, seconds: float) -> str:
        """When, where and how long, and the largest figures."""
        slowest = max(self.rows.items(), key=lambda item: item[1]["slowest"])
        peak = max(row["peak"] for row in self.rows.values())
        return (
            f"{datetime.now(UTC):%Y-%m-%d}, {seconds:.0f} s on {_machine()}, Python {platform.python_version()}: "
            f"{self.inputs:,} different inputs, {len(self.findings)} findings. "
            f"The slowest input took {slowest[1]['slowest']:.1f} s of CPU ({slowest[0]}); "
            f"the largest process had {peak / 2**20:.0f} MiB."
        )


def _machine() -> str:
    cores = sum(line.startswith("processor") for line in Path("/proc/cpuinfo").read_text().splitlines())
    names = [
        line.split(":")[1] for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")
    ]
    return f"{cores} cores of {' '.join(names[0].split()) if names else platform.machine()}"


def start(module: str, *args: str) -> "subprocess.Popen[str]":
    """Start one of the fuzzers."""
    command = [sys.executable, "-m", f"tests.fuzz.{module}", *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")


def collect(totals: Totals, started: "subprocess.Popen[str]", seconds: float, current: Path | None = None) -> None:
    """Wait for a fuzzer and add its counts. One that crashes or hangs is a problem, with the input that it read."""
    command = " ".join(map(str, started.args if isinstance(started.args, Sequence) else [started.args]))
    try:
        out, err = started.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        started.kill()
        out, err = started.communicate()
        totals.problems.append(f"{command} hangs{_input(current)}")
    totals.add(out.splitlines())
    if started.returncode:
        totals.problems.append(f"{command} ended with {started.returncode}{_input(current)}: {err[-2000:]}")


def _input(current: Path | None) -> str:
    return f" at the input {current.read_bytes()[:2000]!r}" if current is not None and current.is_file() else ""


def save(findings: Iterable[Mapping[str, Any]], folder: Path) -> None:
    """Save the content of each finding as a file, and what was said beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    for finding in findings:
        content = bytes.fromhex(finding["content"])
        name = f"{finding['kind'].replace(' ', '-')}-{finding['problem']}-{sha256(content).hexdigest()[:12]}"
        (folder / name).write_bytes(content)
        (folder / f"{name}.txt").write_text(finding["said"])
