"""Several `init` at once: one makes the deployment."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import BadInput
from dflash_deploy.operations import plan
from dflash_deploy.plan.result import Choice
from dflash_deploy.planning import make_plan


def test_the_check_is_repeated_under_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = Choice(profile="cpu", runtime="native")

    def overtaken(wanted: Choice, **read: Any) -> object:
        monkeypatch.setattr(plan, "make_plan", make_plan)
        plan.init(tmp_path, wanted)
        return make_plan(wanted, **read)

    monkeypatch.setattr(plan, "make_plan", overtaken)
    with pytest.raises(BadInput, match="already has a deployment"):
        plan.init(tmp_path, choice)


def test_of_several_at_once_exactly_one_says_that_it_made_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dflash_deploy", "init", "--profile", "cpu", "--runtime", "native"]
    started = [
        subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ)
        for _ in range(3)
    ]
    codes = sorted(one.wait(60) for one in started)
    assert codes[0] == 0
    assert set(codes[1:]) <= {2, 3}
    assert Deployment(tmp_path).key_is_sound
