"""`status` of engines that have ended, by what they left behind."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dflash_deploy.cli.app import app
from dflash_deploy.operations.plan import init
from dflash_deploy.plan.result import Choice
from tests.support.cli import dflash, initialise

# vLLM 0.32 ends with 0 when its core was killed, as it does when it was asked to end
VANISHED = "(APIServer pid=12) WARNING 11-21 21:22:31 [c.py:817] [shutdown] MPClient: engine core exited unexpectedly"


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    initialise("--profile", "cpu", "--runtime", "native", at=tmp_path)
    run = {"pid": 2**22 + 1, "started": 1, "config": "x", "address": "127.0.0.1:8000"}
    (tmp_path / ".dflash" / "run.json").write_text(json.dumps(run))
    (tmp_path / ".dflash" / "engine.log").write_text(f"{VANISHED}; starting cleanup\n")
    return tmp_path


def said_of(deployment: Path, **end: object) -> dict[str, Any]:
    (deployment / ".dflash" / "exit.json").write_text(json.dumps(end))
    data: dict[str, Any] = dflash("status", "--json", at=deployment).succeeded().document["data"]
    assert data["state"] == "exited"
    return data


def test_an_end_that_nobody_asked_for_has_a_cause_whatever_its_code(deployment: Path) -> None:
    assert said_of(deployment, exit_code=0, asked=False)["failure"] == "engine-core-vanished"


def test_an_end_that_was_asked_for_is_called_so(deployment: Path) -> None:
    data = said_of(deployment, exit_code=0, asked=True)
    assert "failure" not in data
    assert data["cause"] == "it was asked to end (SIGTERM)"
    assert "start the engine again with `dflash-deploy up`" in data["do"]


def test_a_deployment_that_never_ran_names_the_command_that_starts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init(tmp_path, Choice(profile="cpu", runtime="native"))
    monkeypatch.chdir(tmp_path)
    assert (
        "state     absent: no engine runs; `dflash-deploy up` starts it\n" in CliRunner().invoke(app, ["status"]).stdout
    )
    assert "nothing since" in CliRunner().invoke(app, ["status", "--since", "1h"]).stdout
