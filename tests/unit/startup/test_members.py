"""What one of several engines can be used for."""

from dataclasses import replace
from pathlib import Path

import pytest

from dflash_deploy.catalog import load_catalog
from dflash_deploy.deployment import Deployment
from dflash_deploy.errors import NotPossible
from dflash_deploy.plan import Choice, Plan
from dflash_deploy.plan.replicas import member_of
from dflash_deploy.rules import plan_deployment
from dflash_deploy.startup.members import refuse_several
from tests.support.machines import DOCKER, H100, machine

TWO_H100 = machine(*(replace(H100, index=index) for index in range(2)), container_engine=DOCKER)


def planned(runtime: str, replicas: int) -> Plan:
    edited = {"DFLASH_RUNTIME": runtime, "REPLICAS": str(replicas)}
    return plan_deployment(TWO_H100, Choice(profile="h100", edited=edited), load_catalog())


def test_other_settings_for_one_of_several_engines_need_processes(tmp_path: Path) -> None:
    whole = Deployment(tmp_path)
    one = whole.replica(2)
    native, compose = planned("native", 2), planned("compose", 2)
    refuse_several(one, member_of(native, 2), "tune")
    for runtime in ("native", "compose"):
        refuse_several(whole, planned(runtime, 1), "tune")
    with pytest.raises(NotPossible) as all_of_them:
        refuse_several(whole, native, "tune")
    assert "--replica 1" in all_of_them.value.hint
    # its compose.yaml has the same settings for all
    for deployment, plan in ((one, member_of(compose, 2)), (whole, compose)):
        with pytest.raises(NotPossible) as in_containers:
            refuse_several(deployment, plan, "tune")
        assert "REPLICAS=1" in in_containers.value.hint
