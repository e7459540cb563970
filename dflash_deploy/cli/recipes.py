"""Lines about the recipes of a profile."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dflash_deploy.catalog.recipes import Offered

MOST_SHOWN = 3
"""Recipes that `init` shows."""


def summary(one: Offered) -> str:
    """Published speed at concurrency 1, safety alignment, what it reads, evidence."""
    reads = "text and images" if one.pair.sees else "text only"
    alignment = "safety alignment" if one.pair.target.aligned else "no safety alignment"
    answers = ("answers can change",) if one.changes_answers else ()
    return ", ".join((speed(one.at_one), alignment, reads, *answers, one.recipe.evidence.state))


def speed(values: Sequence[float]) -> str:
    """From the lowest to the highest of the published workloads."""
    if not values:
        return "no speed published"
    low, high = round(values[0]), round(values[-1])
    return f"{low} tokens/s" if low == high else f"{low} to {high} tokens/s"


def offer_lines(recipes: Sequence[Offered], profile: str) -> Iterator[str]:
    """What `init` shows before it asks: the first recipes, and where the others are."""
    yield f"Recipes for {profile}, with tokens/s that others published for one request:"
    for one in recipes[:MOST_SHOWN]:
        yield f"  {one.recipe.name}: {one.recipe.title}"
        yield f"      {summary(one)}"
    if len(recipes) > MOST_SHOWN:
        yield f"  {len(recipes) - MOST_SHOWN} more: dflash-deploy profiles show {profile}"


def recipe_lines(recipes: Iterable[Offered]) -> Iterator[str]:
    """Every recipe with its reason, its reporters, its settings and its published speeds."""
    for one in recipes:
        recipe = one.recipe
        default = " (default)" if recipe.default else ""
        yield f"  {recipe.name}{default}: {recipe.title}, {recipe.date}"
        yield f"      {one.pair.name} with {one.engine.name}: {summary(one)}"
        yield f"      {recipe.why} [{recipe.evidence.by}]"
        for name, chosen in recipe.settings.items():
            yield f"      {name}={chosen.value}  {chosen.reason} [{chosen.source}]"
        for row in one.published:
            yield f"      {row.workload}, concurrency {row.concurrency}: {row.dflash:g} tokens/s ({row.source})"


def faster_line(found: tuple[Offered, Offered] | None) -> tuple[str, ...]:
    """One line about the recipe that is faster than the default; nothing if none is."""
    if found is None:
        return ()
    default, best = found
    kept = ", with its safety alignment" if best.pair.target.aligned and not default.pair.target.aligned else ""
    against = f"against {speed(default.at_one)}{kept}" if default.at_one else "none for this model"
    return (f"faster   --recipe {best.recipe.name} --force: {speed(best.at_one)} published for one request, {against}",)
