"""The engine of a deployment under measurement: restarted with one setting after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from dflash_deploy.bench.figures import Row
from dflash_deploy.bench.requirement import missed
from dflash_deploy.bench.sweep import Sweep, run_sweep
from dflash_deploy.client import Endpoint
from dflash_deploy.plan import Plan
from dflash_deploy.startup import ShowProgress
from dflash_deploy.startup.known import follow
from dflash_deploy.tuning.experiment import Experiment


class MeasurementReporter(Protocol):
    """Receives what happens while settings are measured."""

    def note(self, text: str) -> None:
        """One line for people."""

    def starting(self) -> AbstractContextManager[ShowProgress]:
        """Opens what shows the progress of one start of the engine."""

    def measured(self, row: Row, setting: str) -> None:
        """One measurement of a setting has ended."""


@dataclass(frozen=True)
class Tried:
    """The rows of one setting, a row for each concurrency, in rising order."""

    title: str
    settings: Mapping[str, str]
    rows: tuple[Row, ...]

    @property
    def rates(self) -> tuple[float, ...]:
        """Tokens/s by concurrency."""
        return tuple(row.tokens_per_s for row in self.rows)

    def document(self) -> dict[str, object]:
        """The rows for `--json`."""
        return {"title": self.title, "settings": self.settings, "rows": [row.document() for row in self.rows]}


@dataclass
class Rig:
    """The running engine of an experiment. `become` restarts it with a plan; `starts` are the seconds that took."""

    experiment: Experiment
    endpoint: Endpoint
    become: Callable[[Plan], None]
    reporter: MeasurementReporter
    starts: list[float] = field(default_factory=list)

    def measure(self, title: str, changes: Mapping[str, str], sweep: Sweep | None = None) -> Tried:
        """Restart the engine with changed settings and measure it. Raises BenchmarkMissed if a request fails."""
        self.reporter.note(f"measuring: {title}")
        plan = self.experiment.plan_with(changes)
        began = time.monotonic()
        self.become(plan)
        follow(self.endpoint, self.experiment.deployment, self.experiment.plan)
        if changes or self.starts:
            self.starts.append(time.monotonic() - began)
        rows = run_sweep(
            self.endpoint,
            sweep or self.experiment.sweep,
            "dflash" if plan.drafting else "mtp" if plan.uses_mtp_head else "off",
            show=lambda row: self.reporter.measured(row, title),
        )
        failure = missed(rows, None, ours=True)
        if failure is not None:
            raise failure
        return Tried(title, changes, tuple(rows))
