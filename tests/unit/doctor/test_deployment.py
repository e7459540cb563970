"""The deployment directory."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_deploy.deployment.lock import command_lock
from dflash_deploy.doctor import deployment
from dflash_deploy.doctor.check import Check, DoctorContext
from dflash_deploy.host.ask import Container
from dflash_deploy.plan.result import Finding, Plan
from tests.support.examined import a_deployment, a_plan, a_subject, by_name, only


def env_file(subject: DoctorContext, _: Plan | None) -> Iterator[Check]:
    return deployment.env_file(subject)


def leftovers(subject: DoctorContext, _: Plan | None) -> Iterator[Check]:
    return deployment.leftovers(subject)


@pytest.fixture(autouse=True)
def _no_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment, "project_containers", lambda project: ())


@pytest.mark.parametrize(("mode", "status"), [(0o600, "ok"), (0o644, "no"), (0o640, "no"), (0o700, "warning")])
def test_env_is_its_owners_alone(tmp_path: Path, mode: int, status: str) -> None:
    place = a_deployment(tmp_path)
    place.env_file.chmod(mode)
    check = only(env_file, a_subject(deployment=place))
    assert check.status == status
    assert f"{mode:04o}" in check.saw


def test_env_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = a_deployment(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: place.env_file.stat().st_uid + 1)
    check = only(env_file, a_subject(deployment=place))
    assert check.status == "no"
    assert "this is user" in check.saw


def test_without_a_deployment_there_is_nothing_to_look_at() -> None:
    assert by_name(env_file, a_subject()) == {}
    assert by_name(leftovers, a_subject()) == {}


def test_a_clean_directory(tmp_path: Path) -> None:
    place = a_deployment(tmp_path)
    with command_lock(place, "up"):
        pass
    (tmp_path / ".gitignore").touch()
    (tmp_path / ".dflash" / "build").mkdir()
    assert only(leftovers, a_subject(deployment=place)).status == "ok"


@pytest.mark.parametrize("left", [".dflash/build.4711", ".dflash/lock.tmp", "..env.0a1b2c3d", ".compose.yaml.deadbeef"])
def test_half_written_files(tmp_path: Path, left: str) -> None:
    place = a_deployment(tmp_path)
    place.make_state()
    (tmp_path / left).touch()
    check = only(leftovers, a_subject(deployment=place))
    assert check.status == "warning"
    assert str(tmp_path / left) in check.saw


def test_containers_that_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = a_deployment(tmp_path)
    there = {place.project_name: (Container("a-vllm-1", "exited"), Container("b", "running"))}
    monkeypatch.setattr(deployment, "project_containers", lambda project: there[project])
    check = only(leftovers, a_subject(deployment=place))
    assert check.status == "warning"
    assert "container a-vllm-1 (exited)" in check.saw
    assert "b (" not in check.saw


def test_a_command_at_work_is_no_leftover(tmp_path: Path) -> None:
    place = a_deployment(tmp_path)
    with command_lock(place, "up"):
        check = only(leftovers, a_subject(deployment=place))
    assert check.saw.startswith("another command uses this directory: up, process ")


def test_a_command_that_was_killed_left_its_name(tmp_path: Path) -> None:
    place = a_deployment(tmp_path)
    (place.make_state() / "lock").write_text("up, process 4711, since 2026-11-21 10:00:00 UTC")
    assert "a command that did not finish (up, process 4711" in only(leftovers, a_subject(deployment=place)).saw


@pytest.mark.parametrize("key", ["", "abc123", "with a blank in it, and long"])
def test_a_key_that_up_refuses_is_named(tmp_path: Path, key: str) -> None:
    check = next(deployment.env_file(a_subject(deployment=a_deployment(tmp_path, VLLM_API_KEY=f"'{key}'"))))
    assert check.status == "no"
    assert "keys rotate" in check.fix
    assert not key or key not in check.saw


def test_findings_of_the_plan() -> None:
    found = (
        Finding("target-needs-loader", "error", "vLLM refuses it", "take another"),
        Finding("open-endpoint", "warning", "all can reach it", "DFLASH_BIND", why="open"),
        Finding("hint", "note", "by the way", ""),
    )
    checks = by_name(deployment.findings, a_subject(a_plan(findings=found)))
    assert {name: check.status for name, check in checks.items()} == {
        "plan: target-needs-loader": "no",
        "plan: open-endpoint": "warning",
    }
    assert only(deployment.findings, a_subject()).status == "ok"
