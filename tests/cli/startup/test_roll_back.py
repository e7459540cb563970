"""A start that fails gives way to the settings that answered last, over a server that plays the engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_deploy.deployment.directory import Deployment, changes, last_good, remember_good, restored_since
from dflash_deploy.errors import EngineDied, EngineNotReady, RolledBack
from dflash_deploy.plan.result import Plan
from dflash_deploy.planning import plan_of
from dflash_deploy.runtime.protocol import EngineState
from dflash_deploy.startup.restore import restore_last_good
from dflash_deploy.startup.start import Ready, bring_up
from tests.support.cli import dflash, edit_env, initialise
from tests.support.scripted import ScriptedRuntime, listening


@pytest.fixture
def port() -> Iterator[str]:
    with listening(200) as url:
        yield url.rpartition(":")[2]


@pytest.fixture
def directory(tmp_path: Path, port: str) -> Path:
    initialise("--profile", "cpu", "--runtime", "native", "--port", port, at=tmp_path)
    return tmp_path


class Box:
    """Starts engines that live or die by their MAX_NUM_SEQS, and remembers with which settings."""

    def __init__(self, directory: Path, port: str) -> None:
        self.directory = directory
        self._port = port
        self.started: list[str] = []

    def up(self, *, good: set[str]) -> Ready:
        def runtime_of(deployment: Deployment, plan: Plan) -> ScriptedRuntime:
            size = plan.values["MAX_NUM_SEQS"]
            self.started.append(size)
            running = EngineState("running", identity="process 1", address=f"127.0.0.1:{self._port}")
            ended = EngineState("exited", exit_code=1, identity="process 2")
            # the preflight looks once, at the engine that is there
            return ScriptedRuntime([running] if size in good else [running, ended])

        deployment = Deployment.existing(self.directory)
        plan = plan_of(deployment)
        try:
            ready = bring_up(deployment, plan, runtime_of(deployment, plan), patience=10, show=lambda _: None)
        except EngineNotReady as problem:
            raise restore_last_good(
                deployment, problem, plan_of, runtime_of, patience=10, show=lambda _: None
            ) from None
        remember_good(deployment)
        return ready


def test_settings_that_answered_are_remembered_without_the_key(directory: Path, port: str) -> None:
    box = Box(directory, port)
    box.up(good={"4"})
    deployment = Deployment(directory)
    good = last_good(deployment)
    assert good is not None
    assert good.values == deployment.values
    assert good.key == deployment.key
    kept = deployment.state / "last-good.env"
    assert deployment.key.reveal() not in kept.read_text()
    assert kept.stat().st_mode & 0o777 == 0o600


def test_a_failed_start_gives_way_to_the_last_good_one(directory: Path, port: str) -> None:
    box = Box(directory, port)
    box.up(good={"4"})
    edit_env(directory, MAX_NUM_SEQS="3")
    with pytest.raises(RolledBack) as failure:
        box.up(good={"4"})
    assert box.started == ["4", "3", "4"]
    assert "MAX_NUM_SEQS: 4 -> 3" in failure.value.hint
    assert "rollback" in failure.value.hint
    deployment = Deployment(directory)
    # what a person wrote stays
    assert deployment.values["MAX_NUM_SEQS"] == "3"
    assert "ended" in restored_since(deployment) or "exit" in restored_since(deployment)
    # mended, the same command goes on, and nothing runs in its place any more
    box.up(good={"3"})
    assert restored_since(Deployment(directory)) == ""
    assert changes(Deployment(directory)) == ()


def test_without_a_good_start_or_with_the_same_settings_there_is_nothing_to_go_back_to(
    directory: Path, port: str
) -> None:
    box = Box(directory, port)
    with pytest.raises(EngineDied):
        box.up(good=set())
    box.up(good={"4"})
    with pytest.raises(EngineDied):
        box.up(good=set())
    assert box.started == ["4", "4", "4"]


def test_where_the_good_ones_fail_too_both_are_told(directory: Path, port: str) -> None:
    box = Box(directory, port)
    box.up(good={"4"})
    edit_env(directory, MAX_NUM_SEQS="3")
    with pytest.raises(EngineDied) as failure:
        box.up(good=set())
    assert "the last working settings do not start either" in failure.value.hint
    assert restored_since(Deployment(directory)) == ""


def test_rollback_says_what_is_missing_before_anything_was_good(directory: Path) -> None:
    ran = dflash("rollback", at=directory)
    assert "has not had a good start yet" in ran.err
