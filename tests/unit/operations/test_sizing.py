"""What `capacity` takes from a plan."""

from dataclasses import replace

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.features.capacity.operations import prompt_steps_of
from dflash_deploy.plan.result import Choice
from dflash_deploy.rules.table import plan_deployment
from tests.support.machines import RECORDED


@pytest.mark.parametrize(
    ("engine", "recurrent", "steps"), [("llamacpp", True, 2), ("llamacpp", False, 1), ("vllm", True, 1)]
)
def test_llamacpp_computes_the_end_of_a_prompt_apart_for_a_target_with_a_state(
    engine: str, recurrent: bool, steps: int
) -> None:
    plan = plan_deployment(RECORDED["cpu"], Choice(profile="cpu", engine=engine, runtime="native"), load_catalog())
    assert plan.pair.shape.linear_attention is not None
    if not recurrent:
        shape = plan.pair.shape.model_copy(update={"linear_attention": None, "sliding_attention": None})
        plan = replace(plan, pair=replace(plan.pair, family=plan.pair.family.model_copy(update={"shape": shape})))
    assert prompt_steps_of(plan) == steps
