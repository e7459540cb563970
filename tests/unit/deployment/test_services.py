"""The Compose file of the engine: what reaches its container."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment.compose import compose_text, create
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.host.machine import HostFacts
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.rules.table import plan_deployment
from tests.support.machines import DOCKER, H100, machine

FOUR_H100 = machine(*(replace(H100, index=index) for index in range(4)), container_engine=DOCKER)


def planned(facts: HostFacts, **choice: Any) -> Plan:
    return plan_deployment(facts, Choice(runtime="compose", **choice), load_catalog())


def made(directory: Path, facts: HostFacts, **choice: Any) -> tuple[Deployment, Plan, dict[str, Any]]:
    plan = planned(facts, **choice)
    assert not plan.errors
    create(Deployment(directory), plan)
    deployment = Deployment(directory)
    return deployment, plan, yaml.safe_load(deployment.compose_file.read_text())


def test_copies_of_the_engine_are_one_service_with_all_gpus(tmp_path: Path) -> None:
    deployment, _, document = made(tmp_path, FOUR_H100, profile="h100", edited={"DATA_PARALLEL_SIZE": "4"})
    assert deployment.values["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    assert set(document["services"]) == {"engine"}
    engine = document["services"]["engine"]
    assert engine["environment"]["DATA_PARALLEL_SIZE"] == "${DATA_PARALLEL_SIZE:-}"
    assert engine["environment"]["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert engine["environment"]["CUDA_VISIBLE_DEVICES"] == "${CUDA_VISIBLE_DEVICES:-}"


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"DFLASH_DRAFTER": "off"}, {"DFLASH_DRAFTER": "off"}),
        ({"DFLASH_NUM_SPEC_TOKENS": "3"}, {"DFLASH_DRAFTER": "${DFLASH_DRAFTER:-off}", "DFLASH_NUM_SPEC_TOKENS": "3"}),
        (
            {"DFLASH_DRAFTER": "mtp", "DFLASH_NUM_SPEC_TOKENS": "2"},
            {"DFLASH_DRAFTER": "mtp", "DFLASH_NUM_SPEC_TOKENS": "2"},
        ),
        # Compose expands a single $
        ({"EXTRA_ARGS": "--seed $x"}, {"EXTRA_ARGS": "--seed $$x"}),
    ],
)
def test_a_plan_for_a_while_counts_more_than_the_file_of_settings(
    tmp_path: Path, changes: dict[str, str], wanted: dict[str, str]
) -> None:
    made(tmp_path, FOUR_H100, profile="h100", edited={"EXTRA_ARGS": "--seed 1"})
    deployment = Deployment(tmp_path)
    plan = planned(FOUR_H100, edited={**deployment.values, **changes})
    environment = yaml.safe_load(compose_text(deployment, plan))["services"]["engine"]["environment"]
    assert wanted.items() <= environment.items()


def test_the_mtp_head_reaches_the_container(tmp_path: Path) -> None:
    edited = {"DFLASH_DRAFTER": "mtp", "DFLASH_NUM_SPEC_TOKENS": "2"}
    _, _, document = made(tmp_path, FOUR_H100, profile="h100", edited=edited)
    environment = document["services"]["engine"]["environment"]
    assert environment["DFLASH_DRAFTER"] == "${DFLASH_DRAFTER:-mtp}"
    assert environment["DFLASH_NUM_SPEC_TOKENS"] == "${DFLASH_NUM_SPEC_TOKENS:-}"
    assert "DRAFTER_PATH" not in environment
