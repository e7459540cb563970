"""What the checks know about a deployment from its plan."""

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.checks.check import deployed_endpoint
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.plan.result import Choice
from dflash_deploy.redact import Secret
from dflash_deploy.rules.table import plan_deployment
from tests.support.machines import MACHINES

VLLM = ("h100", "qwen3.5-27b-fp8", "vllm-0.33")
LLAMACPP = ("rtx-3090", "qwen3.5-27b-gguf", "llamacpp-b11434")


@pytest.mark.parametrize(
    ("machine", "edited", "sees"),
    [
        (VLLM, {}, True),
        (VLLM, {"EXTRA_ARGS": "--language-model-only"}, False),
        (LLAMACPP, {}, True),
        (LLAMACPP, {"MMPROJ_FILE": ""}, False),
    ],
)
def test_a_deployment_without_its_vision_tower_does_not_see(
    machine: tuple[str, str, str], edited: dict[str, str], sees: bool
) -> None:
    profile, model, engine = machine
    choice = Choice(profile=profile, model=model, engine=engine, edited=edited)
    plan = plan_deployment(MACHINES[profile], choice, load_catalog())
    assert deployed_endpoint(Endpoint("http://127.0.0.1:8000", Secret("key"), "model"), plan).sees is sees
