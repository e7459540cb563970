"""`bench`: speed of an endpoint over workloads and concurrency, beside figures that others published."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dflash_deploy import __version__
from dflash_deploy.bench.figures import Row
from dflash_deploy.bench.page import page
from dflash_deploy.bench.published import Beside, beside
from dflash_deploy.bench.requirement import missed
from dflash_deploy.bench.sweep import Sweep, with_speedups
from dflash_deploy.bench.workload import Limits, choose, described
from dflash_deploy.catalog import load_catalog
from dflash_deploy.deployment.outputs import check_output, write_output
from dflash_deploy.errors import BenchmarkMissed
from dflash_deploy.operations.bench_figures import keep_figures
from dflash_deploy.operations.document import SCHEMA
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.operations.targets import BenchTarget

LIMITS = Limits(max_tokens=256, temperature=0.0, thinking=False)
"""Longest answer in tokens, greedy sampling, without thinking."""


@dataclass(frozen=True)
class Benchmark:
    """All rows of a run, and published figures for the same hardware and models.

    `failure` is set if requests failed, drafts contradict the plan, or the speed-up is below the required one.
    """

    rows: tuple[Row, ...]
    published: tuple[Beside, ...]
    failure: BenchmarkMissed | None
    measured: Mapping[str, object]
    workloads: Sequence[Mapping[str, object]]

    def document(self) -> dict[str, object]:
        """The `data` of `bench --json`."""
        return {
            "measured": self.measured,
            "workloads": self.workloads,
            "rows": [row.document() for row in self.rows],
            "published": [row.document() for row in self.published],
        }


def bench(
    target: BenchTarget,
    *,
    workloads: Sequence[str] = (),
    prompts: Path | None = None,
    concurrency: Sequence[int] = (1, 2, 4, 8),
    limits: Limits = LIMITS,
    requests: int | None = None,
    repeats: int = 1,
    warmup: int | None = None,
    min_speedup: float | None = None,
    save: Path | None = None,
    report: Path | None = None,
    reporter: Reporter = SILENT,
) -> Benchmark:
    """Measure tokens/s, TTFT, TPOT, ITL and acceptance of a target, which `deployed` or `remote` returns.

    `workloads` are names as in docs/reference/bench.md, `prompts` a JSONL file of further ones. `requests` counts those
    of one repeat. `save` writes the figures as JSON, `report` as one HTML page. Raises BadInput, EngineNotReady.
    """
    for file in (save, report):
        if file is not None:
            check_output(file)
    sweep = Sweep(
        workloads=tuple(choose(workloads, prompts, target.pair)),
        concurrency=tuple(sorted(set(concurrency))),
        limits=limits,
        repeats=repeats,
        requests=requests,
        warmup=warmup,
    )
    rows = with_speedups(*target.measure(sweep, reporter))
    done = Benchmark(
        rows=tuple(rows),
        published=tuple(_published(target, rows)),
        failure=missed(rows, min_speedup, ours=target.plan is not None),
        measured={**target.description, **_circumstances(sweep)},
        workloads=described(sweep.workloads),
    )
    _write(done, target, save, report)
    _keep(done, target, reporter)
    return done


def _circumstances(sweep: Sweep) -> dict[str, object]:
    return {
        "at": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "version": __version__,
        "max_tokens": sweep.limits.max_tokens,
        "temperature": sweep.limits.temperature,
        "thinking": sweep.limits.thinking,
        "repeats": sweep.repeats,
    }


def _published(target: BenchTarget, rows: Sequence[Row]) -> list[Beside]:
    if target.plan is None:
        return []
    place = (target.plan.profile.name, target.plan.pair.name)
    return beside([speed for speed in load_catalog().speeds if (speed.profile, speed.pair) == place], rows)


def _write(done: Benchmark, target: BenchTarget, save: Path | None, report: Path | None) -> None:
    if save:
        write_output(save, _saved(done, target))
    if report:
        write_output(report, target.redact(page(done.document())))


def _keep(done: Benchmark, target: BenchTarget, reporter: Reporter) -> None:
    """Leave the figures in the deployment, if no request failed. The run does not fail because they cannot be kept."""
    if target.deployment is None or any(row.failed for row in done.rows):
        return
    elsewhere = "baseline_url" in target.description
    if elsewhere:
        reporter.note("without drafts another endpoint was measured: this deployment keeps its own baseline")
    try:
        one = not elsewhere and not (target.plan and target.plan.settings.several_engines)
        baseline = one and any(row.speculation == "off" for row in done.rows)
        keep_figures(target.deployment, _saved(done, target), baseline=baseline)
    except OSError as problem:
        reporter.note(f"the figures are not kept for `plan --load`: {problem.strerror}")


def _saved(done: Benchmark, target: BenchTarget) -> str:
    saved = {"schema": SCHEMA, "command": "bench", "data": done.document()}
    return target.redact(json.dumps(saved, indent=2, ensure_ascii=False)) + "\n"
