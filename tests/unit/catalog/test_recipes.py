"""Recipes: what the loader refuses, their published speeds, and which one is faster than the default."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from dflash_deploy.catalog.hardware import Profile, Recipe
from dflash_deploy.catalog.load import _contradictions, load_catalog
from dflash_deploy.catalog.recipes import Offered, faster, offered
from dflash_deploy.catalog.speeds import PublishedSpeed
from tests.support.rows import each_of

CATALOG = load_catalog()
SPARK = CATALOG.profiles["dgx-spark"]
FIRST, OTHER = SPARK.recipes[0], SPARK.recipes[1]

WITH_RECIPES = [profile for profile in CATALOG.profiles.values() if profile.recipes]


def profile_name(profile: Profile) -> str:
    return profile.name


def with_recipes(*recipes: Recipe) -> list[str]:
    changed = {**CATALOG.profiles, SPARK.name: SPARK.model_copy(update={"recipes": list(recipes)})}
    return list(_contradictions(replace(CATALOG, profiles=changed)))


@pytest.mark.parametrize(
    ("recipes", "says"),
    [
        ((FIRST, OTHER.model_copy(update={"pair": "qwen9"})), "names the pair qwen9, which is not in the catalog"),
        ((FIRST, OTHER.model_copy(update={"engine": "vllm-9"})), "the engine vllm-9, which the profile does not"),
        ((FIRST, OTHER.model_copy(update={"engine": "vllm-cpu-0.32"})), "which the profile does not offer"),
        ((FIRST, OTHER, OTHER), "two recipes of one name"),
        (
            (FIRST, OTHER.model_copy(update={"settings": {"MAX_NUM_SEQ": OTHER.settings["MAX_NUM_SEQS"]}})),
            "sets MAX_NUM_SEQ, which is not a setting (MAX_NUM_SEQS?)",
        ),
    ],
)
def test_a_wrong_recipe_is_refused(recipes: tuple[Recipe, ...], says: str) -> None:
    assert [problem for problem in with_recipes(*recipes) if says in problem]


def test_recipes_of_the_catalog_contradict_nothing() -> None:
    assert with_recipes(FIRST, OTHER) == []


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


def row(workload: str, dflash: float, **other: Any) -> PublishedSpeed:
    figures = {"concurrency": 1, "draft_tokens": 7, "engine": "vllm", "source": "a card", **other}
    return PublishedSpeed(profile="dgx-spark", pair="a", workload=workload, dflash=dflash, **figures)


def offer_of(*published: PublishedSpeed, pair: str = "qwen3.8-27b-fp8", forked: bool = False) -> Offered:
    """A recipe with these speeds, with an engine that changes answers if `forked`."""
    engine = CATALOG.engines["llamacpp-buun" if forked else "vllm-0.33"]
    return Offered(OTHER, CATALOG.pairs[pair], engine, published)


PROSE, CODE = row("prose", 40), row("code, a short prompt", 60)


@pytest.mark.parametrize(
    ("own", "expected", "offers", "option"),
    [
        # another kind of text, or more requests, are not compared
        ((PROSE,), (1.0, 2.0), [offer_of(row("code", 90))], None),
        ((PROSE,), None, [offer_of(row("prose", 90, concurrency=8))], None),
        ((PROSE,), None, [offer_of(row("prose", 41))], None),
        ((PROSE, CODE), None, [offer_of(row("prose", 30), row("code", 90))], f"--recipe {OTHER.name}"),
        # nothing published: what is expected
        ((), (30.0, 80.0), [offer_of(row("code", 90))], f"--recipe {OTHER.name}"),
        ((), (30.0, 100.0), [offer_of(row("code", 90))], None),
        ((), None, [offer_of(row("code", 90))], None),
        # not another model, and not by a loss of alignment or of right answers
        ((PROSE,), None, [offer_of(row("prose", 90), pair="qwen3.6-27b-fp8")], None),
        ((PROSE,), None, [offer_of(row("prose", 90), pair="qwen3.8-27b-uncensored-fp8")], None),
        ((PROSE,), None, [offer_of(row("prose", 90), forked=True)], None),
        # the MTP head beside the drafter
        ((row("code", 51.4, mtp=67.6),), None, [], "--drafter mtp"),
        ((row("code", 67.6, mtp=51.4),), None, [], None),
        ((), None, [], None),
    ],
)
def test_only_what_is_like_it_and_safe_is_faster(
    own: tuple[PublishedSpeed, ...], expected: tuple[float, float] | None, offers: list[Offered], option: str | None
) -> None:
    found = faster(CATALOG.pairs["qwen3.8-27b-nvfp4"], own, expected, offers)
    assert (found and found.option) == option
    if found and "recipe" in found.option:
        assert found.published is bool(own)


def test_a_computed_profile_has_no_recipes_of_another_gpu() -> None:
    assert CATALOG.profile("rtx-5080").recipes == []


def test_alignment_is_what_the_notice_says() -> None:
    aligned = {one.recipe.name: one.pair.target.aligned for one in offered(SPARK, CATALOG)}
    assert aligned["aeon"] is False
    assert aligned["qwen3.8-uncensored-vllm"] is False
    assert aligned["qwen3.8-sglang"] is True
