"""The times of a start, against those of the last one, with a clock of the test's own."""

import json
from pathlib import Path

import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.startup.progress import StartProgress, Step, Timekeeper, remember_seconds, usual_seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def told(times: Timekeeper, clock: list[float], *phases: tuple[str, float]) -> None:
    for phase, seconds in phases:
        times.tell(Step(phase), "")
        clock[0] += seconds


def test_each_phase_has_its_seconds(clock: list[float]) -> None:
    seen: list[StartProgress] = []
    times = Timekeeper(seen.append, {})
    told(times, clock, ("creating", 2), ("loading the target", 5), ("loading the target", 5), ("warming up", 1))
    assert times.ended() == {"creating": 2, "loading the target": 10, "warming up": 1}
    assert times.elapsed == 13
    assert [(one.elapsed, one.in_phase) for one in seen] == [(0, 0), (2, 0), (7, 5), (12, 0)]
    assert {one.usual for one in seen} == {None}


def test_a_phase_that_comes_twice_is_added_up(clock: list[float]) -> None:
    times = Timekeeper(lambda _: None, {})
    told(times, clock, ("opening the endpoint", 1), ("first generation", 2), ("opening the endpoint", 4))
    assert times.ended() == {"opening the endpoint": 5, "first generation": 2}


def test_the_last_start_is_what_to_expect(clock: list[float], tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    assert usual_seconds(deployment) == {}
    remember_seconds(deployment, {"creating": 2.04, "compiling": 60.0})
    assert (deployment.state / "last-start.json").stat().st_mode & 0o777 == 0o600
    seen: list[StartProgress] = []
    told(Timekeeper(seen.append, usual_seconds(deployment)), clock, ("compiling", 1), ("something new", 1))
    assert [(one.usual, one.usual_in_phase) for one in seen] == [(62.0, 60.0), (62.0, None)]


def test_before_the_first_start_it_is_what_others_told(clock: list[float]) -> None:
    seen: list[StartProgress] = []
    times = Timekeeper(seen.append, first=660)
    told(times, clock, ("compiling", 1))
    assert seen[0].usual == 660


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"creating": "long"}', json.dumps({"creating": None}), "\udcff"])
def test_a_spoiled_file_costs_the_comparison_alone(content: str, tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    deployment.make_state()
    (deployment.state / "last-start.json").write_bytes(content.encode(errors="surrogateescape"))
    assert usual_seconds(deployment) == {}
    # and it is the first thing that is written over
    remember_seconds(deployment, {"compiling": 1.0})
    assert usual_seconds(deployment) == {"compiling": 1.0}


def test_what_a_later_start_leaves_out_is_not_expected_of_it(tmp_path: Path) -> None:
    remember_seconds(Deployment(tmp_path), {"pulling the image": 300.0, "building the image": 90.0, "compiling": 60.0})
    assert usual_seconds(Deployment(tmp_path)) == {"compiling": 60.0}


def test_a_place_that_cannot_be_written_costs_the_comparison_alone(tmp_path: Path) -> None:
    (tmp_path / ".dflash").write_text("no directory")
    remember_seconds(Deployment(tmp_path), {"compiling": 60.0})
