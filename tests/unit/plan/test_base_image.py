"""Which base image a machine gets: by processor and driver."""

from dataclasses import replace

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.plan.base_image import base_image_for, driver_needed
from dflash_deploy.plan.result import Choice
from dflash_deploy.rules.table import plan_deployment
from tests.support.machines import H100, machine

VLLM = load_catalog().engine("vllm-0.33")


@pytest.mark.parametrize(
    ("drivers", "tag"),
    [
        (["580.65.06"], "vllm/vllm-openai:v0.33.0"),
        (["575.57.08"], "vllm/vllm-openai:v0.33.0-cu129"),
        (["580.65.06", "575.57.08"], "vllm/vllm-openai:v0.33.0-cu129"),
        # too old for both: the rule about it names the newest
        (["535.54"], "vllm/vllm-openai:v0.33.0"),
        ([""], "vllm/vllm-openai:v0.33.0"),
        ([], "vllm/vllm-openai:v0.33.0"),
    ],
)
def test_the_driver_decides_between_two_builds(drivers: list[str], tag: str) -> None:
    assert base_image_for(VLLM, "x86_64", drivers).tag == tag


@pytest.mark.parametrize(("driver", "refused"), [("580.65.06", False), ("575.57.08", False), ("550.54.15", True)])
def test_a_plan_on_an_older_driver_is_one_to_start_or_says_why_not(driver: str, refused: bool) -> None:
    facts = machine(replace(H100, driver=driver))
    plan = plan_deployment(facts, Choice(profile="h100"), load_catalog())
    assert ("driver-too-old" in {finding.id for finding in plan.findings}) == refused
    assert plan.values["DFLASH_BASE_IMAGE"].endswith("-cu129") == (driver == "575.57.08")


def test_an_image_of_ones_own_is_held_to_the_releases_driver() -> None:
    assert driver_needed(VLLM, "my/own:1") == "580"
