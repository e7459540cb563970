"""Recipes: what the loader refuses, their published speeds, and which one is faster than the default."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from dflash_deploy.catalog.hardware import Profile, Recipe
from dflash_deploy.catalog.load import _contradictions, load_catalog
from dflash_deploy.catalog.recipes import faster, offered
from tests.support.rows import each_of

CATALOG = load_catalog()
SPARK = CATALOG.profiles["dgx-spark"]
DEFAULT, OTHER = SPARK.recipes[0], SPARK.recipes[1]

WITH_RECIPES = [profile for profile in CATALOG.profiles.values() if profile.recipes]


def profile_name(profile: Profile) -> str:
    return profile.name


def with_recipes(*recipes: Recipe) -> list[str]:
    changed = {**CATALOG.profiles, SPARK.name: SPARK.model_copy(update={"recipes": list(recipes)})}
    return list(_contradictions(replace(CATALOG, profiles=changed)))


@pytest.mark.parametrize(
    ("recipes", "says"),
    [
        ((DEFAULT, OTHER.model_copy(update={"pair": "qwen9"})), "names the pair qwen9, which is not in the catalog"),
        ((DEFAULT, OTHER.model_copy(update={"engine": "vllm-9"})), "the engine vllm-9, which the profile does not"),
        ((DEFAULT, OTHER.model_copy(update={"engine": "vllm-cpu-0.32"})), "which the profile does not offer"),
        ((DEFAULT, OTHER.model_copy(update={"default": True})), "exactly one of them must be the default"),
        ((OTHER,), "exactly one of them must be the default"),
        ((OTHER.model_copy(update={"default": True}),), "it has the profile's pair"),
        ((DEFAULT.model_copy(update={"settings": OTHER.settings}),), "no settings of its own"),
        ((DEFAULT, OTHER, OTHER), "two recipes of one name"),
        (
            (DEFAULT, OTHER.model_copy(update={"settings": {"MAX_NUM_SEQ": OTHER.settings["MAX_NUM_SEQS"]}})),
            "sets MAX_NUM_SEQ, which is not a setting (MAX_NUM_SEQS?)",
        ),
    ],
)
def test_a_wrong_recipe_is_refused(recipes: tuple[Recipe, ...], says: str) -> None:
    assert [problem for problem in with_recipes(*recipes) if says in problem]


def test_recipes_of_the_catalog_contradict_nothing() -> None:
    assert with_recipes(DEFAULT, OTHER) == []


@pytest.mark.parametrize("missing", ["date", "why", "evidence", "engine"])
def test_a_recipe_without_a_date_a_reason_evidence_or_an_engine_is_refused(missing: str) -> None:
    written: dict[str, Any] = OTHER.model_dump(exclude={missing})
    with pytest.raises(ValidationError, match=missing):
        Recipe.model_validate(written)


@each_of(WITH_RECIPES, name=profile_name)
def test_a_published_speed_is_only_beside_the_models_and_the_engine_that_it_was_measured_with(profile: Profile) -> None:
    for one in offered(profile, CATALOG):
        assert {(row.profile, row.pair, row.engine) for row in one.published} <= {
            (profile.name, one.recipe.pair, one.engine.engine)
        }


def test_recipes_with_other_draft_tokens_have_other_speeds() -> None:
    found = {one.recipe.name: one for one in offered(CATALOG.profiles["b200"], CATALOG)}
    assert {row.draft_tokens for row in found["qwen3.5-sglang"].published} == {15}
    assert {row.draft_tokens for row in found["qwen3.5-sglang-many"].published} == {7}


@pytest.mark.parametrize(
    ("profile", "recipe"),
    [("dgx-spark", "qwen3.8-sglang"), ("rtx-3090-x2", "qwen3.8-vllm"), ("rtx-5090", "qwen3.6-vllm")],
)
def test_the_fastest_published_recipe_is_named(profile: str, recipe: str) -> None:
    found = faster(offered(CATALOG.profiles[profile], CATALOG))
    assert found is not None
    assert found[1].recipe.name == recipe


def test_a_fork_that_changes_answers_and_one_token_more_are_not_faster() -> None:
    fork = offered(CATALOG.profiles["rtx-3090"], CATALOG)
    assert [one.changes_answers for one in fork] == [False, False, True]
    assert faster(fork) is None
    # HumanEval: 427 with SGLang, 426 with vLLM
    assert faster(offered(CATALOG.profiles["b200"], CATALOG)) is None
    assert faster(()) is None


def test_a_computed_profile_has_no_recipes_of_another_gpu() -> None:
    assert CATALOG.profile("rtx-5080").recipes == []


def test_alignment_is_what_the_notice_says() -> None:
    aligned = {one.recipe.name: one.pair.target.aligned for one in offered(SPARK, CATALOG)}
    assert aligned["qwen3.5-original"] is False
    assert aligned["qwen3.8-uncensored-vllm"] is False
    assert aligned["qwen3.8-sglang"] is True
