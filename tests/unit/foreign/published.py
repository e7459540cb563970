"""Published recipes, as their arguments, variables and container options with values: recipes.yaml."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.catalog.models import ModelPair
from dflash_deploy.foreign.items import ForeignRecipe, ItemKind, RecipeItem
from dflash_deploy.foreign.mapping import Translated, Translator, engine_of, pair_of, with_options

FILE = Path(__file__).with_name("recipes.yaml")
KINDS: dict[str, ItemKind] = {"$": "variable", "%": "container", "-": "argument"}


@dataclass(frozen=True)
class Published:
    """One recipe: where it is from, when its file was changed last, and what it sets."""

    source: str
    date: str
    half: int
    form: str
    engines: tuple[str, ...]
    contained: bool
    items: str
    fates: dict[str, int]

    def __str__(self) -> str:
        return self.source

    @property
    def recipe(self) -> ForeignRecipe:
        items = tuple(map(read_item, self.items.splitlines()))
        image = next((item.value for item in items if item.name == "--image"), "")
        mounts = dict(mount for item in items if (mount := mounted(item)))
        return ForeignRecipe(self.form, self.engines, image, self.contained, items, mounts)

    def translated(self) -> tuple[Translated, ...]:
        """The rows, checked against the first release of the engine whose options are known."""
        catalog, recipe = load_catalog(), self.recipe
        engine = engine_of(recipe, catalog)
        kind = catalog.engines[engine].engine if engine in catalog.engines else engine
        recipe = with_options(recipe, kind, catalog)
        release = min(
            (one for one in catalog.engines.values() if one.engine == kind),
            key=lambda one: (one.name not in catalog.options, one.cpu),
        )
        pair: ModelPair | str = pair_of(recipe, kind, catalog)
        return Translator(recipe, release, pair, catalog).rows()


def read_item(line: str) -> RecipeItem:
    """`$ NAME=VALUE`, `% --option VALUE` of a container, or `--flag VALUE`; a `!` before it: the value is not set."""
    unset, line = line.startswith("!"), line.removeprefix("!")
    kind = KINDS[line[0]]
    body = line if kind == "argument" else line[2:]
    name, _, value = body.partition("=" if kind == "variable" else " ")
    return RecipeItem(kind, name, value, 0, value if unset else "")


def mounted(item: RecipeItem) -> tuple[str, str] | None:
    outer, colon, inner = item.value.partition(":")
    return (inner, outer) if item.name == "--volume" and colon else None


def published() -> tuple[Published, ...]:
    entries: list[dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return tuple(Published(**{**entry, "engines": tuple(entry["engines"])}) for entry in entries)


def counted(rows: Iterable[Translated]) -> dict[str, int]:
    return dict(sorted(Counter(row.fate for row in rows).items()))


def totals(recipes: Iterable[Published]) -> Iterator[tuple[str, int]]:
    """The number of items of each fate in all recipes."""
    found: Counter[str] = Counter()
    for one in recipes:
        found.update(one.fates)
    yield from sorted(found.items())
