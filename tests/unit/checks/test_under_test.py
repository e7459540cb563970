"""What the checks know about a deployment from its plan."""

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.checks.check import deployed_endpoint, reads_tool_calls
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


@pytest.mark.parametrize(
    ("machine", "edited", "tools", "thinks"),
    [
        (VLLM, {}, True, True),
        (VLLM, {"TOOL_CALL_PARSER": "", "REASONING_PARSER": ""}, False, False),
        # its chat template decides, which only the engine reads
        (LLAMACPP, {}, None, True),
    ],
)
def test_tool_calls_and_reasoning_are_those_of_the_parsers_or_of_the_chat_template(
    machine: tuple[str, str, str], edited: dict[str, str], tools: bool | None, thinks: bool
) -> None:
    profile, model, engine = machine
    plan = plan_deployment(
        MACHINES[profile], Choice(profile=profile, model=model, engine=engine, edited=edited), load_catalog()
    )
    tested = deployed_endpoint(Endpoint("http://127.0.0.1:8000", Secret("key"), "model"), plan)
    assert (tested.calls_tools, tested.thinks) == (tools, thinks)
    assert reads_tool_calls(plan) is (tools is not False)
