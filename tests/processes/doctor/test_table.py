"""Every check of `doctor` with real sockets and programs."""

import pytest

from dflash_deploy.doctor.table import run_checks
from tests.support.examined import a_plan, a_subject


def test_every_check_of_the_table_has_its_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    checks = run_checks(a_subject(a_plan(repos=False)))
    assert not [check for check in checks if "itself failed" in check.saw]
    named = {check.name for check in checks}
    assert named >= {"gpu", "plan", "driver", "architecture", "container engine", "compose", "gpu in containers"}
    assert named >= {"memory", "disk", "weights of target", "weights of drafter", "port", "hub"}
