"""The recipes of a profile beside what others published of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dflash_deploy.catalog.hardware import Profile, Recipe
from dflash_deploy.catalog.load import Catalog, load_catalog
from dflash_deploy.catalog.models import ModelPair
from dflash_deploy.catalog.read import Evidenced
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


@dataclass(frozen=True)
class Faster:
    """What others measured to be faster than a plan, for the same kind of text at concurrency 1."""

    option: str
    """The option of `init` that chooses it."""
    workload: str
    theirs: tuple[float, float]
    """Lowest and highest tokens per second."""
    now: tuple[float, float]
    """The same of the plan: published, or expected if nothing is."""
    published: bool
    """Whether `now` was published."""
    source: str


def faster(
    pair: ModelPair,
    own: Sequence[PublishedSpeed],
    expected: tuple[float, float] | None,
    recipes: Iterable[Offered],
) -> Faster | None:
    """The recipe or the MTP head that is the most faster than a pair; `None` if none is, by MARGIN.

    `own` are the published speeds of the pair with its engine, `expected` its speed by the model. A recipe of another
    base model, whose engine changes answers, or whose target has no safety alignment, is left out.
    """
    safe = (
        one
        for one in recipes
        if one.pair.family.name == pair.family.name
        and one.pair.name != pair.name
        and one.pair.target.aligned
        and not one.changes_answers
    )
    found = [
        # the target's MTP head, if it was measured beside the drafter and is faster in one of the rows
        *(
            Faster("--drafter mtp", row.workload, (row.mtp, row.mtp), (row.dflash, row.dflash), bool(own), row.source)
            for row in own
            if row.concurrency == 1 and row.mtp is not None
        ),
        *(
            Faster(f"--recipe {one.recipe.name}", kind, _span(rows), now, bool(_of_kind(own, kind)), rows[0].source)
            for one in safe
            for kind in dict.fromkeys(row.kind for row in one.published if row.concurrency == 1)
            if (rows := _of_kind(one.published, kind)) and (now := _now(own, kind, expected)) is not None
        ),
    ]
    better = [one for one in found if one.theirs[1] > MARGIN * one.now[1]]
    return max(better, key=lambda one: one.theirs[1] / one.now[1], default=None)


def _of_kind(rows: Iterable[PublishedSpeed], kind: str) -> list[PublishedSpeed]:
    return [row for row in rows if (row.kind, row.concurrency) == (kind, 1)]


def _span(rows: Iterable[PublishedSpeed]) -> tuple[float, float]:
    values = [row.dflash for row in rows]
    return min(values), max(values)


def _now(own: Sequence[PublishedSpeed], kind: str, expected: tuple[float, float] | None) -> tuple[float, float] | None:
    """The plan's own speed for a kind of text; what is expected only if nothing of it was published."""
    rows = _of_kind(own, kind)
    return _span(rows) if rows else None if own else expected


def evidence(profile: Profile, pair: ModelPair, engine: EngineRelease) -> Evidenced:
    """Whether a pair was run with an engine on this hardware: a recipe's evidence, a speed's, the profile's.

    What was reported of other models says nothing of these.
    """
    recipe = next((one for one in profile.recipes if (one.pair, one.engine) == (pair.name, engine.name)), None)
    if recipe is not None:
        return recipe.evidence
    if profile.evidence.state == "computed" or pair.toy or pair.name == profile.speed_of:
        return profile.evidence
    rows = [row for row in load_catalog().speeds if (row.profile, row.pair) == (profile.name, pair.name)]
    rows = [row for row in rows if row.engine == engine.engine]
    if rows:
        return Evidenced(state="reported", by="; ".join(dict.fromkeys(row.source for row in rows)))
    return Evidenced(state="untested", by=f"no report of these models with {engine.title} on this hardware is known")


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
