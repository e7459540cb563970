"""`up` on a machine that computes for another one, over an engine that runs or ends by a script."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from dflash_deploy.deployment.directory import RESTORED, Deployment, remember_good
from dflash_deploy.errors import ExitCode
from dflash_deploy.runtime.protocol import EngineState, Narrate
from tests.support.cli import edit_env, initialise, invoke
from tests.support.scripted import ScriptedRuntime, play

RUNNING = EngineState("running", identity="process 1")


class Counted(ScriptedRuntime):
    """Counts its starts."""

    starts = 0

    def start(self, narrate: Narrate) -> bool:
        """It is started once more."""
        self.starts += 1
        return super().start(narrate)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    initialise("--profile", "cpu", "--runtime", "native", at=tmp_path)
    edit_env(tmp_path, NODES="2", NODE_RANK="1", MASTER_ADDR="10.0.0.1")
    monkeypatch.setattr(import_module("dflash_deploy.startup.start"), "SETTLES", 1.0)
    return tmp_path


def run(verb: str, directory: Path) -> tuple[ExitCode, dict[str, Any], str]:
    ran = invoke(verb, "--json", "--dir", str(directory))
    return ran.code, ran.document, ran.err


def test_it_is_started_and_not_waited_for(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, lambda *_: ScriptedRuntime([RUNNING]))
    code, document, _ = run("up", directory)
    assert code is ExitCode.DONE
    data = document["data"]
    assert (data["rank"], data["master"], data["state"]) == (1, "10.0.0.1", "running")
    # nothing is asked of it either
    _, document, _ = run("status", directory)
    assert (document["data"]["state"], document["data"]["rank"]) == ("running", 1)
    # nothing listens on this machine
    assert document["data"]["endpoint"] == ""
    assert "endpoint" not in invoke("status", "--dir", str(directory)).succeeded().out


def test_an_engine_that_ends_meanwhile_is_explained(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = ScriptedRuntime([RUNNING, EngineState("exited", exit_code=1)], [("ValueError: the moon is full",)])
    play(monkeypatch, lambda *_: runtime)
    code, _, said = run("up", directory)
    assert code is ExitCode.NOT_READY
    assert "the moon is full" in said
    assert runtime.halted


def test_the_leader_does_not_go_back_to_settings_that_the_others_do_not_have(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit_env(directory, NODE_RANK="0")
    remember_good(Deployment(directory))
    edit_env(directory, MAX_NUM_SEQS="2")
    runtime = Counted([EngineState("exited", exit_code=1)])
    play(monkeypatch, lambda *_: runtime)
    code, _, _ = run("up", directory)
    assert code is ExitCode.NOT_READY
    assert not (directory / ".dflash" / RESTORED).exists()
    assert runtime.starts == 1


def test_what_needs_an_answer_refuses_and_names_the_way(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = ScriptedRuntime([RUNNING])
    play(monkeypatch, lambda *_: runtime)
    code, document, _ = run("restart", directory)
    assert code is ExitCode.PREFLIGHT
    assert not runtime.halted
    assert document["error"]["message"] == "this machine is rank 1; only rank 0 serves requests"
