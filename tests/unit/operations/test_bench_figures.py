"""When the speed that `bench` measured without drafts is that of a deployment's engine, and when it is kept."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash_deploy.bench.figures import Row
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment.compose import member_plan
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.intake.documents import BenchConditions
from dflash_deploy.operations.bench import BenchTarget, Work, bench, described_target
from dflash_deploy.operations.figures import LAST_BASELINE, LAST_FIGURES, measured_instead, plain_speed
from dflash_deploy.operations.reporter import Reporter
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.redact import Redactor
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
    run = bench(scripted(deployment, before), workloads=["own"])
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


def test_one_of_several_engines_on_shared_cores_is_not_the_only_engine() -> None:
    several = planned(REPLICAS="2")
    one = member_plan(several, 1)
    cores = len(one.settings.dflash_cores)
    assert cores
    run = measured(one, cores=cores)
    assert measured_instead(run, several) == ""
    assert measured_instead(run, one) == ""
    assert measured_instead(run, planned()) == f"an engine on {cores} cores"
    assert measured_instead(measured(planned()), several) == "an engine on all cores"
    # both engines together are not one of them
    assert "REPLICAS=2" in measured_instead(measured(several), several)


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
