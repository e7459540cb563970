"""What one of several engines can be used for."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment.compose import FINGERPRINT, create
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import NotPossible
from dflash_deploy.plan.replicas import member_of
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.rules.table import plan_deployment
from dflash_deploy.startup import rolling
from dflash_deploy.startup.members import refuse_several
from dflash_deploy.startup.rolling import ComposeFile
from tests.support.machines import DOCKER, H100, machine

TWO_H100 = machine(*(replace(H100, index=index) for index in range(2)), container_engine=DOCKER)


def planned(runtime: str, replicas: int) -> Plan:
    edited = {"DFLASH_RUNTIME": runtime, "REPLICAS": str(replicas)}
    return plan_deployment(TWO_H100, Choice(profile="h100", edited=edited), load_catalog())


@pytest.mark.parametrize("runtime", ["native", "compose"])
def test_other_settings_are_for_one_of_several_engines(runtime: str) -> None:
    whole = planned(runtime, 2)
    refuse_several(member_of(whole, 2), "tune")
    refuse_several(planned(runtime, 1), "tune")
    with pytest.raises(NotPossible) as all_of_them:
        refuse_several(whole, "tune")
    assert "--replica 1" in all_of_them.value.hint


def services(deployment: Deployment) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(deployment.compose_file.read_text())
    return document["services"]  # type: ignore[no-any-return]


def test_one_engine_in_a_container_gets_other_settings_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan_with(**changes: str) -> Plan:
        edited = {**Deployment(tmp_path).values, **changes} if changes else Deployment(tmp_path).values
        return plan_deployment(TWO_H100, Choice(edited=edited), load_catalog())

    create(Deployment(tmp_path), planned("compose", 2))
    monkeypatch.setattr(rolling, "plan_of", lambda deployment: plan_with())
    monkeypatch.setattr(
        rolling, "make_plan", lambda choice, deployment: plan_deployment(TWO_H100, choice, load_catalog())
    )
    one = Deployment(tmp_path).replica(1)
    before, own = services(one), member_of(plan_with(), 1)
    file = ComposeFile(one, own)
    for changes in ({"DFLASH_NUM_SPEC_TOKENS": "3"}, {"DFLASH_DRAFTER": "off"}, {"MAX_NUM_SEQS": "5"}):
        file.write(member_of(plan_with(**changes), 1))
        now = services(one)
        assert changes.items() <= now["engine-1"]["environment"].items()
        # Compose creates a service again if anything of it changes
        assert {name for name in now if now[name] != before[name]} == {"engine-1"}
        assert now["engine-1"]["labels"][FINGERPRINT] != before["engine-1"]["labels"][FINGERPRINT]
    file.write(own)
    assert services(one) == before
