"""When the speed that `bench` measured without drafts is that of a deployment's engine, and when it is kept."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.catalog.models import ModelPair
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.intake.documents import BenchConditions
from dflash_deploy.operations.bench import (
    LAST_BASELINE,
    LAST_FIGURES,
    bench,
    described_target,
    measured_instead,
    plain_speed,
)
from dflash_deploy.operations.reporter import Reporter
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.redact import Redact, Redactor
from dflash_deploy.rules.table import plan_deployment
from tests.support.machines import RECORDED
from tests.support.measured import rows


def planned(**edited: str) -> Plan:
    choice = Choice(profile="cpu", engine="llamacpp", runtime="native", edited=edited)
    return plan_deployment(RECORDED["cpu"], choice, load_catalog())


def measured(plan: Plan, **further: Any) -> BenchConditions:
    """What `bench` says of a run on a deployment with this plan."""
    of = {**described_target(plan, "tiny"), "at": "2026-11-23 12:00 UTC", **further}
    return BenchConditions(**{name: value for name, value in of.items() if name not in {"model", "runtime"}})


def test_the_same_settings_fit_whatever_the_drafts_and_sizes_are() -> None:
    run = measured(planned())
    assert measured_instead(run, planned()) == ""
    assert measured_instead(run, planned(DFLASH_NUM_SPEC_TOKENS="2", MAX_MODEL_LEN="512", DFLASH_PORT="9000")) == ""
    assert measured_instead(run, planned(MAX_NUM_SEQS="16", MAX_NUM_BATCHED_TOKENS="4096")) == ""


@pytest.mark.parametrize(("name", "value"), [("KV_CACHE_DTYPE", "q8_0"), ("EXTRA_ARGS", "--threads 1")])
def test_a_setting_that_changes_the_speed_without_drafts_is_named(name: str, value: str) -> None:
    before, after = planned(), planned(**{name: value})
    assert measured_instead(measured(before), after) == f"{name}={before.values[name] or '(empty)'}"
    assert measured_instead(measured(after), before) == f"{name}={value}"


@pytest.mark.parametrize("now", ["2", "4", "16"])
def test_more_clients_than_ran_at_once_are_no_baseline_whatever_runs_at_once_now(tmp_path: Path, now: str) -> None:
    before, deployment = planned(MAX_NUM_SEQS="4"), Deployment(tmp_path)
    run = bench(Scripted(deployment, before, described_target(before, "tiny")), workloads=["own"])
    plain = {row.concurrency for row in run.rows if row.speculation == "off"}
    assert max(plain) > 4
    known = plain_speed(deployment, planned(MAX_NUM_SEQS=now))
    assert known.tpot_seconds.keys() == {at for at in plain if at <= 4}


def test_other_models_and_engines_are_named() -> None:
    run = measured(planned())
    other = run.model_copy(update={"pair": "another", "engine": "vllm 0.1"})
    assert measured_instead(other, planned()) == "another, vllm 0.1"


def test_another_endpoint_is_named() -> None:
    run = measured(planned(), baseline_url="http://box:8001")
    assert measured_instead(run, planned()) == "another endpoint, http://box:8001"


@dataclass(frozen=True)
class Scripted:
    """A target with figures of its own."""

    deployment: Deployment
    plan: Plan
    description: Mapping[str, object]

    @property
    def pair(self) -> ModelPair:
        return self.plan.pair

    @property
    def redact(self) -> Redact:
        return Redactor([])

    def each(self, work: Any, reporter: Reporter) -> list[Any]:
        return [replace(row, speedup=None) for row in rows()]

    def memory(self) -> None:
        """Not known."""


@pytest.mark.parametrize(
    ("further", "kept"),
    [({}, {LAST_FIGURES, LAST_BASELINE}), ({"baseline_url": "http://box:8001"}, {LAST_FIGURES})],
)
def test_only_the_engine_itself_without_drafts_becomes_the_baseline(
    tmp_path: Path, further: dict[str, str], kept: set[str]
) -> None:
    plan = planned()
    bench(Scripted(Deployment(tmp_path), plan, {**described_target(plan, "tiny"), **further}), workloads=["own"])
    assert {file.name for file in (tmp_path / ".dflash").iterdir()} == kept
