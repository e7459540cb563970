"""What `tune` makes of figures: what is decided, what is written, and what people read."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_deploy import planning
from dflash_deploy.bench.workload import Limits
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.cli.tune import shown_of
from dflash_deploy.deployment.compose import create
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.operations.bench import Measured, circumstances, described_target
from dflash_deploy.operations.tune import Tried, Tuned, confirmed, decided, plan_tuning
from dflash_deploy.plan.result import Choice
from dflash_deploy.rules.table import plan_deployment
from dflash_deploy.tuning.choose import Option
from tests.support.machines import LAPTOP
from tests.support.measured import rows
from tests.support.schemas import data_problems


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(planning, "read_facts", lambda: LAPTOP)
    plan = plan_deployment(LAPTOP, Choice(profile="cpu", runtime="native"), load_catalog())
    create(Deployment(tmp_path), plan)
    return tmp_path


def run(directory: Path, title: str, settings: dict[str, str], *, off: bool = False, times: float = 1.0) -> Tried:
    """One setting, as measured at concurrency 1, 4 and 8."""
    kept = [row for row in rows() if row.workload == "code" and row.speculation == ("off" if off else "dflash")]
    return Tried(title, settings, tuple(replace(row, tokens_per_s=times * row.tokens_per_s) for row in kept))


def outcome(directory: Path, best: Option, times: Sequence[float]) -> Tuned:
    """What `tune` found where the proposal then was so many times as fast as .env, in both of its runs."""
    tuning = plan_tuning(directory, workloads=["code"], limits=Limits(8), repeats=1, concurrency=(1, 4))
    tuning = replace(tuning, sweep=replace(tuning.sweep, concurrency=(1, 4, 8)))
    assert [title for title, *_ in tuning.steps] == ["7 draft tokens", "1 draft token", "no drafter"]
    tried = [run(directory, title, dict(changes), off=not count) for title, changes, count in tuning.steps]
    how = Measured(**described_target(tuning.plan, "tiny"), **circumstances(tuning.sweep.limits, 1), context=0)
    done = replace(decided(tuning, how, tried), option=best)
    for again in times:
        done = confirmed(done, run(directory, best.title, best.settings, times=again), tried[0])
    return done


def said(done: Tuned) -> Iterator[str]:
    """What people read of an outcome, without the table."""
    assert data_problems("tune", done.document()) == []
    return (line for line in shown_of(done) if isinstance(line, str))


SCHEDULE = Option(7, (1.0,) * 3, ((1, 2, 7), (3, 8, 2)))


def test_a_proposal_that_won_is_written_and_the_old_file_kept(deployment: Path) -> None:
    done = outcome(deployment, SCHEDULE, [1.2])
    # 7 is what .env has already
    assert done.changes == {"DFLASH_SPEC_SCHEDULE": "1-2:7,3-8:2"}
    lines = list(said(done))
    assert "proposed  schedule 1-2:7,3-8:2: 1.20 times as fast as the settings of .env, at least 1.20" in lines
    assert "          DFLASH_SPEC_SCHEDULE=1-2:7,3-8:2" in lines
    before = (deployment / ".env").read_bytes()
    changed = done.tuning.deployment.with_values(done.changes, why=[f"tune: {done.sentence}"])
    assert changed.values["DFLASH_SPEC_SCHEDULE"] == "1-2:7,3-8:2"
    assert (deployment / ".env.last").read_bytes() == before
    # the gain stands beside what it speaks for
    written = (deployment / ".env").read_text().splitlines()
    place = written.index("DFLASH_SPEC_SCHEDULE=1-2:7,3-8:2")
    assert written[place - 1].startswith("#= tune: proposed")
    # what was measured keeps its changes
    assert done.changes


def test_what_did_not_win_when_measured_is_not_proposed(deployment: Path) -> None:
    done = outcome(deployment, Option(3, (1.0,) * 3), [1.01])
    assert done.changes == {}
    assert any(line.startswith("keep ") and "1.01 times" in line for line in said(done))
    none = outcome(deployment, Option(3, (1.0,) * 3), [])
    assert "keep      the settings of .env: nothing is predicted to be faster" in said(none)


def test_a_setting_that_was_measured_before_is_judged_by_both_of_its_runs(deployment: Path) -> None:
    slower = outcome(deployment, Option(1, (1.0,) * 3), [1.2])
    # 1.0 and 1.2 times: two runs of one setting differ by more than the gain
    assert slower.verdict is not None
    assert (round(slower.verdict.gain, 3), round(slower.verdict.noise, 3)) == (1.1, 0.2)
    assert slower.proposal is None
