"""The recipes of a profile beside what others published of them."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_deploy.catalog.hardware import Profile, Recipe
from dflash_deploy.catalog.load import Catalog
from dflash_deploy.catalog.models import ModelPair
from dflash_deploy.catalog.releases import EngineRelease
from dflash_deploy.catalog.speeds import PublishedSpeed
from dflash_deploy.errors import NotPossible, UnknownRecipe
from dflash_deploy.serve.settings import Settings

MARGIN = 1.05  # A published speed must be this many times another one to count as faster


@dataclass(frozen=True)
class Offered:
    """A recipe with its models, its engine release and its published speeds."""

    recipe: Recipe
    pair: ModelPair
    engine: EngineRelease
    published: tuple[PublishedSpeed, ...]

    @property
    def at_one(self) -> tuple[float, ...]:
        """Published tokens per second at concurrency 1, the lowest first; workloads differ."""
        return tuple(sorted(row.dflash for row in self.published if row.concurrency == 1))

    @property
    def changes_answers(self) -> bool:
        """Whether a known defect of its engine changes the target's answers."""
        return any(bug.changes_answers for bug in self.engine.open_bugs)


def offered(profile: Profile, catalog: Catalog) -> tuple[Offered, ...]:
    """The recipes of a profile, in its order."""
    return tuple(_offered(profile, recipe, catalog) for recipe in profile.recipes)


def _offered(profile: Profile, recipe: Recipe, catalog: Catalog) -> Offered:
    """A recipe with the rows of its models and engine: those with its draft tokens, if there are any."""
    pair, engine = catalog.pairs[recipe.pair], catalog.engines[recipe.engine]
    place = (profile.name, pair.name, engine.engine)
    rows = [row for row in catalog.speeds if (row.profile, row.pair, row.engine) == place]
    chosen = profile.following(recipe).settings_for(engine.name).get(Settings.dflash_num_spec_tokens.name)
    tokens = chosen.value if chosen else pair.drafter.most_draft_tokens
    return Offered(recipe, pair, engine, tuple([row for row in rows if row.draft_tokens == tokens] or rows))


def faster(recipes: tuple[Offered, ...]) -> tuple[Offered, Offered] | None:
    """The default recipe, and the one with the highest published speed at concurrency 1; `None` if it is the default.

    Workloads differ, so that less than MARGIN more is not faster. A recipe whose engine changes answers is left out.
    """
    default = next((one for one in recipes if one.recipe.default), None)
    others = [one for one in recipes if one.at_one and not one.recipe.default and not one.changes_answers]
    if default is None or not others:
        return None
    best = max(others, key=lambda one: one.at_one[-1])
    slower = not default.at_one or best.at_one[-1] > MARGIN * default.at_one[-1]
    return (default, best) if slower else None


def recipe_of(profile: Profile, name: str, catalog: Catalog) -> Recipe:
    """The recipe of that name. Raises UnknownRecipe, which says if it is another profile's."""
    found = next((one for one in profile.recipes if one.name == name), None)
    if found is not None:
        return found
    elsewhere = [one.name for one in catalog.profiles.values() if any(name == recipe.name for recipe in one.recipes)]
    what = f"a recipe of {', '.join(elsewhere)}, not of {profile.name}" if elsewhere else f"no recipe of {profile.name}"
    known = ", ".join(one.name for one in profile.recipes)
    hint = f"its recipes: {known}" if known else f"{profile.name} has no recipes: remove --recipe"
    raise UnknownRecipe(f"`{name}` is {what}", hint=hint)


def check_recipe(recipe: Recipe, catalog: Catalog, *, model: str | None, engine: str | None) -> None:
    """Raise NotPossible if a model or an engine is asked for that is not the recipe's; UnknownPair, UnknownEngine."""
    if model is not None and catalog.pair(model).name != recipe.pair:
        raise NotPossible(f"recipe {recipe.name} serves {recipe.pair}, not {model}", hint="remove --model or --recipe")
    if engine not in {None, recipe.engine, catalog.engines[recipe.engine].engine}:
        raise NotPossible(f"recipe {recipe.name} has {recipe.engine}, not {engine}", hint="remove --engine or --recipe")
