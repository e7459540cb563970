"""Plans with a recipe: each is possible, and what it decides has its name. `aeon` is the system as published."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash_deploy.catalog.hardware import Profile, Recipe
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.catalog.read import CatalogSetting
from dflash_deploy.deployment.compose import create
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import DeployError, NotPossible, UnknownRecipe
from dflash_deploy.intake.parse import parse_packaged_yaml
from dflash_deploy.plan.command import engine_command
from dflash_deploy.plan.result import Choice, Decision, Finding, Plan
from dflash_deploy.rules.table import judge, plan_deployment
from tests.support.machines import MACHINES, SPARK
from tests.support.rows import each_of

CATALOG = load_catalog()
RECIPES = [(profile, recipe) for profile in CATALOG.profiles.values() for recipe in profile.recipes]

# Warnings that a recipe has, and says itself.
SAID = {("qwen3.5-buun", "answers-change")}


def recipe_name(one: tuple[Profile, Recipe]) -> str:
    return f"{one[0].name}, {one[1].name}"


def planned(profile: str, **choice: Any) -> Plan:
    master = "10.0.0.1" if CATALOG.profiles[profile].hardware.machines > 1 else None
    wish = Choice(profile=profile, runtime="compose", master_addr=master, **choice)
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


@each_of([one for one in RECIPES if one[1].settings], name=recipe_name)
def test_the_settings_of_a_recipe_reach_the_plan_with_its_name_reason_and_source(one: tuple[Profile, Recipe]) -> None:
    profile, recipe = one
    decided = {decision.name: decision for decision in planned(profile.name, recipe=recipe.name).decisions}
    for name, chosen in recipe.settings.items():
        made = decided[name]
        if name == "GPU_MEMORY_UTILIZATION" and profile.hardware.unified:
            # an upper value: the system keeps its part
            assert float(made.value) <= float(chosen.value)
            continue
        assert (made.value, made.origin) == (str(chosen.value), f"recipe {recipe.name}")
        assert (made.reason, made.source) == (chosen.reason, chosen.source)
    assert decided["DFLASH_PAIR"].origin == decided["DFLASH_ENGINE"].origin == f"recipe {recipe.name}"
    assert ("recipe" in decided["MAX_MODEL_LEN"].origin) is ("MAX_MODEL_LEN" in recipe.settings)


def test_the_system_of_aeon_is_planned_as_it_was_published() -> None:
    plan = planned("dgx-spark", recipe="aeon")
    settings = plan.settings
    assert (plan.pair.name, plan.engine.name) == ("qwen3.5-27b-uncensored-nvfp4", "aeon-vllm-dflash")
    assert (settings.max_model_len, settings.max_num_seqs, settings.draft_tokens) == (65536, 16, 15)
    assert (settings.max_num_batched_tokens, settings.enable_prefix_caching) == (32768, False)
    assert (settings.attention_backend, settings.kv_cache_dtype) == ("FLASH_ATTN", "auto")


def exceeding(plan: Plan) -> Finding:
    return next(one for one in plan.findings if one.id == "draft-tokens-exceed-block")


def test_a_value_with_a_source_is_kept_and_one_of_the_user_s_own_is_warned_about() -> None:
    plan = planned("dgx-spark", recipe="qwen3.8-sglang")
    kept = exceeding(plan)
    assert kept.severity == "note"
    assert kept.fix.startswith("keep it: recipe qwen3.8-sglang has this value, since 16 positions")
    assert "pangoleen" in kept.source
    # the deployment that it was written to, and one with another value
    written = planned("dgx-spark", edited=dict(plan.values))
    assert exceeding(written).severity == "note"
    own = planned("dgx-spark", edited={**plan.values, "DFLASH_NUM_SPEC_TOKENS": "14"})
    assert exceeding(own).severity == "warning"
    assert "or less" in exceeding(own).fix


def test_each_setting_of_a_recipe_is_kept() -> None:
    """The same for another rule and another setting: by the fix that names it, whatever the rule."""
    chosen = CatalogSetting(value="off", reason="its author measured it so", source="a card")
    spark = CATALOG.profiles["dgx-spark"]
    recipe = spark.recipes[1].model_copy(update={"settings": {"ENABLE_PREFIX_CACHING": chosen}})
    plan = planned("dgx-spark", recipe=recipe.name)
    edited = replace(plan, profile=spark.model_copy(update={"recipes": [recipe]}))
    warned = Finding("x", "warning", "m", "set ENABLE_PREFIX_CACHING=on", "s")
    off = replace(edited, decisions=(Decision("ENABLE_PREFIX_CACHING", "off", ".env", "r"),))
    (kept,) = judge(off, SPARK, [lambda plan, facts: warned])
    assert kept.severity == "note"
    on = replace(edited, decisions=(Decision("ENABLE_PREFIX_CACHING", "on", ".env", "r"),))
    assert list(judge(on, SPARK, [lambda plan, facts: warned])) == [warned]


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
        ({"recipe": "nope"}, UnknownRecipe, "`nope` is no recipe of dgx-spark", "its recipes: qwen3.8-vllm, "),
        ({"recipe": ""}, UnknownRecipe, "`` is no recipe of dgx-spark", "its recipes: "),
        (
            {"recipe": "qwen3.5-buun"},
            UnknownRecipe,
            "`qwen3.5-buun` is a recipe of rtx-3090, not of dgx-spark",
            "its recipes: qwen3.8-vllm, ",
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
