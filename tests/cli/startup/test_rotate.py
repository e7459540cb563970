"""`keys rotate` under an engine that does not look at keys, as one that was started by hand without any."""

from pathlib import Path

import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import Interrupted, KeyNotReplaced
from dflash_deploy.operations.keys import rotate_running
from dflash_deploy.plan.result import Plan
from dflash_deploy.planning import plan_of
from dflash_deploy.runtime.protocol import EngineState, Narrate
from tests.support.cli import initialise
from tests.support.scripted import ScriptedRuntime, listening


class Interrupting(ScriptedRuntime):
    """Ctrl-C comes while the running engine is being stopped."""

    def start(self, narrate: Narrate) -> bool:
        raise KeyboardInterrupt


def deployed(directory: Path, port: str) -> tuple[Deployment, Plan]:
    initialise("--profile", "cpu", "--runtime", "native", "--port", port, at=directory)
    deployment = Deployment.existing(directory)
    return deployment, plan_of(deployment)


def runs_at(port: str) -> EngineState:
    return EngineState("running", identity="process 1", address=f"127.0.0.1:{port}")


def rotate(deployment: Deployment, plan: Plan, runtime: ScriptedRuntime) -> None:
    rotate_running(deployment, plan, lambda _: runtime, patience=10, show=lambda _: None)


def test_an_endpoint_that_the_old_key_still_opens_is_a_failure(tmp_path: Path) -> None:
    with listening(200) as url:
        port = url.rpartition(":")[2]
        deployment, plan = deployed(tmp_path, port)
        with pytest.raises(KeyNotReplaced, match="200 for the old key"):
            rotate(deployment, plan, ScriptedRuntime([runs_at(port)]))
    assert Deployment(tmp_path).key != deployment.key


def test_ended_before_the_engine_was_stopped_it_says_that_the_old_key_still_opens(tmp_path: Path) -> None:
    with listening(200) as url:
        port = url.rpartition(":")[2]
        deployment, plan = deployed(tmp_path, port)
        with pytest.raises(Interrupted) as ended:
            rotate(deployment, plan, Interrupting([runs_at(port)]))
    assert "STILL VALID" in ended.value.hint
    assert Deployment(tmp_path).key != deployment.key
