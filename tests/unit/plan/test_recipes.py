"""Plans with a recipe: each one is possible, what it decides has its name, and the default is the plan without one."""

from pathlib import Path
from typing import Any

import pytest

from dflash_deploy.catalog.hardware import Profile, Recipe
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment.compose import create
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import DeployError, NotPossible, UnknownRecipe
from dflash_deploy.intake.parse import parse_packaged_yaml
from dflash_deploy.plan.command import engine_command
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.rules.table import plan_deployment
from tests.support.machines import MACHINES
from tests.support.rows import each_of

CATALOG = load_catalog()
RECIPES = [(profile, recipe) for profile in CATALOG.profiles.values() for recipe in profile.recipes]

# Warnings that a recipe has, and says itself.
SAID = {("qwen3.8-sglang", "draft-tokens-exceed-block"), ("qwen3.5-buun", "answers-change")}


def recipe_name(one: tuple[Profile, Recipe]) -> str:
    return f"{one[0].name}, {one[1].name}"


def planned(profile: str, **choice: Any) -> Plan:
    wish = Choice(profile=profile, runtime="compose", **choice)
    return plan_deployment(MACHINES[profile], wish, CATALOG)


@each_of(RECIPES, name=recipe_name)
def test_each_recipe_is_planned_and_warned_of_nothing_new(one: tuple[Profile, Recipe]) -> None:
    profile, recipe = one
    plan = planned(profile.name, recipe=recipe.name)
    found = {(recipe.name, finding.id) for finding in plan.findings if finding.severity != "note"}
    assert found <= SAID
    assert (plan.pair.name, plan.engine.name) == (recipe.pair, recipe.engine)
    assert engine_command(plan)


def test_each_recipe_is_rendered(tmp_path: Path) -> None:
    for profile, recipe in RECIPES:
        deployment = Deployment(tmp_path / profile.name / recipe.name)
        deployment.directory.mkdir(parents=True)
        create(deployment, planned(profile.name, recipe=recipe.name))
        assert parse_packaged_yaml(deployment.compose_file.read_text())["services"], recipe_name((profile, recipe))
        assert deployment.values["DFLASH_PAIR"] == recipe.pair


@each_of([one for one in RECIPES if one[1].default], name=recipe_name)
def test_the_default_recipe_is_the_plan_without_a_recipe(one: tuple[Profile, Recipe]) -> None:
    profile, recipe = one
    assert planned(profile.name, recipe=recipe.name).values == planned(profile.name).values


@each_of([one for one in RECIPES if one[1].settings], name=recipe_name)
def test_the_settings_of_a_recipe_reach_the_plan_with_its_name_reason_and_source(one: tuple[Profile, Recipe]) -> None:
    profile, recipe = one
    decided = {decision.name: decision for decision in planned(profile.name, recipe=recipe.name).decisions}
    for name, chosen in recipe.settings.items():
        made = decided[name]
        assert (made.value, made.origin) == (str(chosen.value), f"recipe {recipe.name}")
        assert (made.reason, made.source) == (chosen.reason, chosen.source)
    assert decided["DFLASH_PAIR"].origin == decided["DFLASH_ENGINE"].origin == f"recipe {recipe.name}"
    assert "recipe" not in decided["MAX_MODEL_LEN"].origin


def test_sglang_gets_the_quantization_of_the_drafter() -> None:
    command = engine_command(planned("dgx-spark", recipe="qwen3.8-sglang"))
    assert command[-2:] == ["--speculative-draft-model-quantization", "modelopt_fp4"]
    assert command[command.index("--speculative-num-draft-tokens") + 1] == "16"
    assert "modelopt_fp4" not in engine_command(planned("dgx-spark", recipe="qwen3.8-vllm"))


def test_the_size_of_a_goal_overrides_that_of_a_recipe() -> None:
    plan = planned("dgx-spark", recipe="qwen3.8-sglang", goal="latency")
    assert plan.values["MAX_NUM_SEQS"] == "4"


@pytest.mark.parametrize(
    ("choice", "error", "says", "hint"),
    [
        ({"recipe": "nope"}, UnknownRecipe, "`nope` is no recipe of dgx-spark", "its recipes: qwen3.5-original, "),
        ({"recipe": ""}, UnknownRecipe, "`` is no recipe of dgx-spark", "its recipes: "),
        (
            {"recipe": "qwen3.5-buun"},
            UnknownRecipe,
            "`qwen3.5-buun` is a recipe of rtx-3090, not of dgx-spark",
            "its recipes: qwen3.5-original, ",
        ),
        (
            {"recipe": "qwen3.8-sglang", "model": "qwen3.8-27b-fp8"},
            NotPossible,
            "recipe qwen3.8-sglang serves qwen3.8-27b-nvfp4-nvfp4-drafter, not qwen3.8-27b-fp8",
            "remove --model or --recipe",
        ),
        (
            {"recipe": "qwen3.8-sglang", "engine": "vllm"},
            NotPossible,
            "recipe qwen3.8-sglang has sglang-0.5.23, not vllm",
            "remove --engine or --recipe",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_with_what_does(
    choice: dict[str, str], error: type[DeployError], says: str, hint: str
) -> None:
    with pytest.raises(error) as caught:
        planned("dgx-spark", **choice)
    assert caught.value.message == says
    assert hint in caught.value.hint


def test_a_profile_without_recipes_says_so() -> None:
    with pytest.raises(UnknownRecipe) as caught:
        planned("cpu", recipe="qwen3.8-sglang")
    assert caught.value.hint == "cpu has no recipes: remove --recipe"


@pytest.mark.parametrize("more", [{"engine": "sglang"}, {"model": "qwen3.8-27b-nvfp4-nvfp4-drafter"}])
def test_a_recipe_with_its_own_model_or_engine_is_taken(more: dict[str, str]) -> None:
    plan = planned("dgx-spark", recipe="qwen3.8-sglang", **more)
    assert plan.engine.name == "sglang-0.5.23"
