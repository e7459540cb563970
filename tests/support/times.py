"""Where the time of the tests goes: `make times`, a table of the last run of each tier, its modules and fixtures.

Seconds are of the wall; CPU seconds are those of pytest, of the processes that it has waited for, and of commands.
What a container or a process of another parent used is not in them. The time of a fixture is its setup without the
fixtures that it needs.
"""

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_server import command_server
from tests.support.tiers import whole_tier

FOLDER = Path(".cache/times")  # one file for each tier, or part of one, that ran as a whole


@dataclass
class Spent:
    """What one module, fixture or tier took: seconds, CPU seconds, and how many tests or setups."""

    wall: float = 0.0
    cpu: float = 0.0
    number: int = 0

    def add(self, wall: float, cpu: float, number: int = 1) -> None:
        """Count something that took so long."""
        self.wall += wall
        self.cpu += cpu
        self.number += number


@dataclass(eq=False)
class Recorder:
    """The pytest plugin: notes what each test and each fixture took, and keeps it if a whole tier ran."""

    begun: float = field(default_factory=time.monotonic)
    modules: dict[str, Spent] = field(default_factory=lambda: defaultdict(Spent))
    fixtures: dict[str, Spent] = field(default_factory=lambda: defaultdict(Spent))
    workers_cpu: float = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """A test with its setup and teardown counts for its module."""
        wall, cpu = _now()
        result = yield
        self.modules[item.nodeid.split("::")[0]].add(*_since(wall, cpu))
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        """The fixtures that it needs are set up before this is called."""
        wall, cpu = _now()
        try:
            return (yield)
        finally:
            self.fixtures[f"{fixturedef.baseid}::{fixturedef.argname}"].add(*_since(wall, cpu))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker of pytest-xdist has ended: what it noted is of this run."""
        noted = getattr(node, "workeroutput", {}).get("times")
        if noted:
            self.workers_cpu += noted["cpu"]
            for kind, ours in (("modules", self.modules), ("fixtures", self.fixtures)):
                for name, spent in noted[kind].items():
                    ours[name].add(**spent)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the file of the tier, or tell the process that started this worker."""
        noted = {
            "wall": time.monotonic() - self.begun,
            "cpu": self.workers_cpu + (sum(os.times()[:2]) if self.workers_cpu else _now()[1]),
            "tests": sum(spent.number for spent in self.modules.values()),
            "failed": session.testsfailed,
            "modules": {name: vars(spent) for name, spent in self.modules.items()},
            "fixtures": {name: vars(spent) for name, spent in self.fixtures.items()},
        }
        tier = whole_tier(session.config)
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["times"] = noted
        elif tier is not None:
            FOLDER.mkdir(parents=True, exist_ok=True)
            (FOLDER / f"{tier}.json").write_text(json.dumps({"tier": tier, **noted}))


def _now() -> tuple[float, float]:
    used = os.times()
    commands = command_server().cpu_seconds if command_server.cache_info().currsize else 0.0
    return time.monotonic(), sum(used[:4]) + commands


def _since(wall: float, cpu: float) -> tuple[float, float]:
    now = _now()
    return now[0] - wall, now[1] - cpu


def lines(kept: Iterable[dict[str, Any]], longest: int = 25) -> list[str]:
    """The table: every tier, then the modules and the fixtures that took longest."""
    tiers = sorted(kept, key=lambda one: -one["wall"])
    text = [f"{'tier':28}{'tests':>8}{'failed':>8}{'seconds':>10}{'CPU s':>10}"]
    text += [
        f"{one['tier']:28}{one['tests']:>8}{one['failed']:>8}{one['wall']:>10.0f}{one['cpu']:>10.0f}" for one in tiers
    ]
    total = [sum(one[name] for one in tiers) for name in ("tests", "failed", "wall", "cpu")]
    text.append(f"{'all':28}{total[0]:>8}{total[1]:>8}{total[2]:>10.0f}{total[3]:>10.0f}")
    for kind in ("modules", "fixtures"):
        rows = [(name, spent) for one in tiers for name, spent in one[kind].items()]
        rows.sort(key=lambda row: -row[1]["wall"])
        text += ["", f"{kind[:-1]:70}{'times':>6}{'seconds':>10}{'CPU s':>10}"]
        text += [
            f"{name[-70:]:70}{spent['number']:>6}{spent['wall']:>10.1f}{spent['cpu']:>10.1f}"
            for name, spent in rows[:longest]
        ]
    return text


def main() -> None:
    """Print the table."""
    kept = [json.loads(one.read_text()) for one in sorted(FOLDER.glob("*.json"))]
    if not kept:
        sys.exit("no tier has run as a whole here: `make test-unit` is one")
    print("\n".join(lines(kept)))


if __name__ == "__main__":
    main()
