"""Which figures of `bench` a deployment keeps."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash_deploy.bench.figures import Row
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.operations.bench import BenchTarget, Work, bench, described_target
from dflash_deploy.operations.figures import LAST_BASELINE, LAST_FIGURES
from dflash_deploy.operations.reporter import Reporter
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.redact import Redactor
from dflash_deploy.rules.table import plan_deployment
from tests.support.machines import RECORDED
from tests.support.measured import rows


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
