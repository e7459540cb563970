"""Which figures of `bench` a deployment keeps."""

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dflash_deploy.bench.figures import Row
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.host.gpu import GpuReading
from dflash_deploy.operations import bench as measuring
from dflash_deploy.operations.bench import BenchTarget, Work, bench, described_target
from dflash_deploy.operations.figures import LAST_BASELINE, LAST_FIGURES
from dflash_deploy.operations.reporter import Reporter
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.redact import Redactor
from dflash_deploy.rules.table import plan_deployment
from tests.support.machines import RECORDED, RTX_3090
from tests.support.measured import PUBLISHED, rows


def planned() -> Plan:
    choice = Choice(profile="cpu", engine="llamacpp", runtime="native")
    return plan_deployment(RECORDED["cpu"], choice, load_catalog())


class Scripted(BenchTarget):
    """A target with figures of its own."""

    def each(self, work: Work, reporter: Reporter) -> list[Row]:
        return [replace(row, speedup=None) for row in rows()]


def scripted(deployment: Deployment, plan: Plan, **further: object) -> Scripted:
    endpoint: Any = None
    description = {**described_target(plan, "tiny"), **further}
    return Scripted(endpoint, None, Redactor([]), description, deployment, plan)


@pytest.mark.parametrize(
    ("further", "kept"),
    [({}, {LAST_FIGURES, LAST_BASELINE}), ({"baseline_url": "http://box:8001"}, {LAST_FIGURES})],
)
def test_only_the_engine_itself_without_drafts_becomes_the_baseline(
    tmp_path: Path, further: dict[str, str], kept: set[str]
) -> None:
    bench(scripted(Deployment(tmp_path), planned(), **further), workloads=["own"])
    assert {file.name for file in (tmp_path / ".dflash").iterdir()} == kept


def test_a_condition_stands_beside_figures_below_the_published_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = replace(RTX_3090, condition={"power.limit": "100", "power.default_limit": "350"})

    class Loaded(Scripted):
        def each(self, work: Work, reporter: Reporter) -> list[Row]:
            for thread in threading.enumerate():
                if isinstance(thread, threading.Timer):
                    thread.join()
            return super().each(work, reporter)

    monkeypatch.setattr(measuring, "UNDER_LOAD", 0.0)
    monkeypatch.setattr(measuring, "read_gpus", lambda: GpuReading((slow,)))
    plan = plan_deployment(RECORDED["b200"], Choice(profile="b200"), load_catalog())
    speed = PUBLISHED.model_copy(update={"pair": plan.pair.name, "profile": "b200", "dflash": 1e6})
    reached = speed.model_copy(update={"plain": 1.0, "dflash": 1.0})
    monkeypatch.setattr(measuring, "load_catalog", lambda: SimpleNamespace(speeds=(speed, reached)))
    target = Loaded(*vars(scripted(Deployment(tmp_path), plan)).values())
    below, above = bench(target, workloads=["code"]).published
    assert below.condition == "GPU 0: its power limit is 100 W of 350 W (29 %)"
    assert above.condition == ""
