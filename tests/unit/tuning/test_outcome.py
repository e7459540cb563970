"""What `tune` makes of figures: what is written, and what people read."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash_deploy import planning
from dflash_deploy.bench.sweep import Sweep
from dflash_deploy.bench.workload import Limits, packaged
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.cli.tune import shown_of
from dflash_deploy.deployment.compose import create
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.operations.plan import plan as run_plan
from dflash_deploy.operations.reporter import SILENT
from dflash_deploy.operations.tune import Tuned, changes_of, evidence_of
from dflash_deploy.plan.result import Choice
from dflash_deploy.planning import plan_of
from dflash_deploy.rules.table import plan_deployment
from dflash_deploy.tuning.choose import Option, compared
from dflash_deploy.tuning.experiment import OFF, Experiment, fixed, prepare
from dflash_deploy.tuning.model import fitted, point_of
from dflash_deploy.tuning.run import Outcome, Rig, Tried, heads_of, points_of
from tests.support.machines import LAPTOP
from tests.support.measured import rows
from tests.support.schemas import data_problems


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(planning, "read_facts", lambda: LAPTOP)
    plan = plan_deployment(LAPTOP, Choice(profile="cpu", runtime="native"), load_catalog())
    create(Deployment(tmp_path), plan)
    return tmp_path


def experiment(directory: Path) -> Experiment:
    deployment = Deployment.existing(directory)
    limits = Limits(max_tokens=8, temperature=0.0, thinking=False)
    sweep = Sweep((packaged("code"),), (1, 2, 4), limits, repeats=1)
    return prepare(deployment, plan_of(deployment), sweep, (), scheduling=True)


def said(directory: Path, found: Outcome) -> Iterator[str]:
    """What people read of an outcome, without the table."""
    asked = experiment(directory)
    done = Tuned(asked, found, changes_of(asked.deployment, found.settings))
    assert data_problems("tune", done.document()) == []
    return (line for line in shown_of(done) if isinstance(line, str))


def outcome(best: Option, rates: Sequence[float]) -> Outcome:
    """What `tune` found where the proposal then answered with these rates."""
    made = [row for row in rows() if row.workload == "code"]
    drafted, plain = ([row for row in made if row.speculation == kind] for kind in ("dflash", "off"))
    current, off = Tried("7 draft tokens", {}, tuple(drafted)), Tried("no drafter", OFF, tuple(plain))
    fewer = Tried("1 draft token", fixed(1), tuple(replace(row, acceptance_by_position=(1.0,)) for row in drafted))
    points = [point_of(row, k) for one, k in ((current, 7), (fewer, 1), (off, 0)) for row in one.rows]
    again = [replace(row, tokens_per_s=rate) for row, rate in zip(drafted, rates, strict=True)]
    confirmed = Tried(best.title, best.settings, tuple(again))
    verdict = compared(confirmed.rates, current.rates)
    tried = (current, fewer, off, confirmed)
    return Outcome(fitted(points), (best,), best, tried, current, off, confirmed, verdict, (1.0,))


def test_a_proposal_that_won_is_written_and_the_old_file_kept(deployment: Path) -> None:
    current = outcome(Option("fixed", 7, (1.0,) * 3), (1.0,) * 3).current.rates
    best = Option("schedule", 7, (1.0,) * 3, ((1, 2, 7), (3, 8, 2)))
    found = outcome(best, [rate * 1.2 for rate in current])
    here = Deployment.existing(deployment)
    changes = changes_of(here, found.settings)
    # 7 is what .env has already
    assert changes == {"DFLASH_SPEC_SCHEDULE": "1-2:7,3-8:2"}
    lines = list(said(deployment, found))
    assert any("1.20 times as fast" in line for line in lines)
    assert "          DFLASH_SPEC_SCHEDULE=1-2:7,3-8:2" in lines
    before = (deployment / ".env").read_bytes()
    why = evidence_of("own", found)
    assert here.with_values(changes, why).values["DFLASH_SPEC_SCHEDULE"] == "1-2:7,3-8:2"
    assert (deployment / ".env.last").read_bytes() == before
    # the figures stand beside what they speak for
    written = (deployment / ".env").read_text().splitlines()
    place = written.index("DFLASH_SPEC_SCHEDULE=1-2:7,3-8:2")
    shown = ", ".join(f"{rate * 1.2:.1f}" for rate in current)
    assert written[place - 1] == f"#= schedule 1-2:7,3-8:2     {shown}"
    assert written[place - len(why)].endswith("UTC, prompts: own")


def test_what_did_not_win_when_measured_is_not_proposed(deployment: Path) -> None:
    best = Option("fixed", 3, (1.0,) * 3)
    current = outcome(best, (1.0,) * 3).current.rates
    found = outcome(best, [rate * 1.01 for rate in current])
    here = Deployment.existing(deployment)
    assert changes_of(here, found.settings) == {}
    lines = list(said(deployment, found))
    assert any(line.startswith("keep ") and "1.01 times" in line for line in lines)
    slower = outcome(best, [row.tokens_per_s * 0.9 for row in found.plain.rows])
    assert any(line.startswith("but ") for line in said(deployment, slower))


def with_head(found: Outcome, ratio: float) -> Outcome:
    """The same outcome where the MTP head was measured too, at this ratio to 7 draft tokens."""
    head = Option("mtp", 2, tuple(rate * ratio for rate in found.best.rates))
    return replace(found, options=(*found.options, head))


def test_plan_repeats_what_tune_found_of_the_head(deployment: Path) -> None:
    found = with_head(outcome(Option("fixed", 7, (1.0, 2.0, 4.0)), (1.0,) * 3), 1.5)
    sentence = (
        "MTP head, 2 draft tokens: 1.50 times as fast (1.50 to 1.50 by concurrency) as the drafter with "
        "7 draft tokens: the better choice"
    )
    assert f"MTP       {sentence}" in said(deployment, found)
    assert found.head is not None
    state = Deployment.existing(deployment).make_state()
    evidence = {
        "data": {
            "measured": {"pair": "tiny", "at": "2026-11-22 16:00 UTC", "seconds_of_starts": []},
            "points": [],
            "head": found.head.document(),
        }
    }
    assert run_plan(deployment).head == ""
    (state / "tune.json").write_text(json.dumps(evidence))
    planned = run_plan(deployment)
    assert planned.head == f"{sentence} (tune, 2026-11-22 16:00 UTC)"
    assert planned.document()["speed"] == {"expected": [], "published": [], "mtp_head": planned.head}
    # another choice is another plan
    assert run_plan(deployment, Choice(goal="throughput")).head == ""
    evidence["data"]["measured"] = {"pair": "other", "seconds_of_starts": []}
    (state / "tune.json").write_text(json.dumps(evidence))
    assert run_plan(deployment).head == ""


def test_what_was_measured_with_the_head_does_not_enter_the_drafters_prediction(deployment: Path) -> None:
    asked = experiment(deployment)
    assert asked.head_counts == (2,)
    rates = {"": 300.0, "1": 150.0, "2": 999.0, "off": 100.0}

    class Answering(Rig):
        def measure(self, title: str, changes: Mapping[str, str], sweep: Sweep | None = None) -> Tried:
            off = changes == OFF
            rate = rates["off" if off else changes.get("DFLASH_NUM_SPEC_TOKENS", "")]
            kept = [row for row in rows() if row.workload == "code" and row.speculation == ("off" if off else "dflash")]
            return Tried(title, changes, tuple(replace(row, tokens_per_s=rate) for row in kept))

    endpoint: Any = None
    tried = [Answering(asked, endpoint, lambda plan: None, SILENT).measure(*step) for step in asked.steps]
    points = list(points_of(asked, tried))
    assert {point.draft_tokens for point in points} == {0, 1, 7}
    assert 999.0 not in {point.tokens_per_s for point in points}
    assert heads_of(asked, tried) == {2: (999.0,) * 3}
