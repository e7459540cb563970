"""Lines about plans, recipes of profiles and recipes of others that several commands show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.options import size_of
from dflash_deploy.cli.shown import Grid, Shown
from dflash_deploy.serve.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dflash_deploy.catalog.recipes import Faster, Offered
    from dflash_deploy.foreign.mapping import Translated
    from dflash_deploy.operations.foreign import ForeignPlan
    from dflash_deploy.plan.result import Plan


def refusal_of(plan: Plan) -> tuple[str, ...]:
    """One line if `up` would refuse the plan; nothing otherwise."""
    count = len(plan.errors)
    said = "an error" if count == 1 else f"{count} errors"
    return (f"refused  `dflash-deploy up` will not start this: {said} below",) if count else ()


def evidence_of(plan: Plan) -> str:
    """Whether the plan's models were run with its engine on this hardware."""
    from dflash_deploy.catalog.recipes import evidence

    return evidence(plan.profile, plan.pair, plan.engine).state


def evidence_line(plan: Plan) -> str:
    """The evidence, and who has run what."""
    from dflash_deploy.catalog.recipes import evidence

    found = evidence(plan.profile, plan.pair, plan.engine)
    return f"{found.state}: {found.by}"


def model_lines(plan: Plan) -> tuple[str, ...]:
    """The target and drafter, what they read, and what they weigh."""
    pair = plan.pair
    reads = "text and images" if pair.sees else "text only, no images"
    weights = pair.target.bytes + (pair.drafter.bytes if plan.drafting else 0)
    notice: tuple[str, ...] = (f"         {pair.target.notice}",) if pair.target.notice else ()
    if pair.drafter.absent and not plan.speculating:
        notice = (*notice, "         without a draft model: it decodes without drafts")
    if pair.family.unknown:
        licence = pair.target.licence or "not stated: find out whether you may use it"
        gated = f"; gated: needs {Settings.hf_token}" if pair.target.gated else ""
        notice = (*notice, f"         licence {licence}{gated}")
    return f"model    {pair.title}", *notice, f"         reads {reads}; {size_of(weights)} of weights"


MOST_SHOWN = 3  # recipes that `init` shows


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
        yield f"  {recipe.name}: {recipe.title}, {recipe.date}"
        yield f"      {one.pair.name} with {one.engine.name}: {summary(one)}"
        yield f"      {recipe.why} [{recipe.evidence.by}]"
        for name, chosen in recipe.settings.items():
            yield f"      {name}={chosen.value}  {chosen.reason} [{chosen.source}]"
        for row in one.published:
            yield f"      {row.workload}, concurrency {row.concurrency}: {row.dflash:g} tokens/s ({row.source})"


def faster_line(found: Faster | None, profile: str | None) -> tuple[str, ...]:
    """One line with the command of what is faster than the plan; nothing if nothing is."""
    if found is None:
        return ()
    named = f" --profile {profile}" if profile else ""
    now = f"now {speed(found.now)}{'' if found.published else ' expected'}"
    for_one = f"{speed(found.theirs)} for {found.workload} at concurrency 1 ({found.source})"
    return (f"faster   dflash-deploy init --force{named} {found.option}   {for_one}, {now}",)


LONGEST_THEIRS = 60  # characters of theirs in the table; --json has all of them

From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="FILE|URL|-",
        help="Take over a published command, script or file of another program. Runs nothing of it.",
    ),
]


MOST_TOGETHER = 6  # items with the same fate and reason that one line names


def taken_over(found: ForeignPlan) -> Iterator[Shown]:
    """What became of a recipe: the dangerous first, and what has the same reason together."""
    from dflash_deploy.foreign.mapping import FATES

    table = Grid("fate", "theirs", "ours and why", wraps=("theirs", "ours and why"))
    for fate in FATES:
        together: dict[str, list[Translated]] = {}
        for row in found.items:
            if row.fate == fate:
                together.setdefault(row.why if fate != "dangerous" else f"{row.why}{row.line}{row.name}", []).append(
                    row
                )
        for rows in together.values():
            more = f" and {len(rows) - MOST_TOGETHER} more" if len(rows) > MOST_TOGETHER else ""
            theirs = ", ".join(_short(row, whole=len(rows) == 1) for row in rows[:MOST_TOGETHER]) + more
            ours = ", ".join(dict.fromkeys(row.ours for row in rows if row.ours))
            table.add_row(fate, theirs, ": ".join(filter(None, (ours, rows[0].why))))
    yield table
    yield ""
    yield f"recipe   {found.form}, checked against {found.engine}; --json has every item"
    for fate, meaning in FATES.items():
        if count := found.counts.get(fate):
            yield f"         {count} {fate}: {meaning}"


def _short(row: Translated, *, whole: bool) -> str:
    """An item as one reads it; without its value if several share a line."""
    named = {"command": row.value, "variable": f"{row.name}={row.value}"}.get(row.kind, f"{row.name} {row.value}")
    theirs = " ".join((named if whole or row.kind == "command" else row.name).split())
    return theirs if len(theirs) <= LONGEST_THEIRS else f"{theirs[: LONGEST_THEIRS - 1]}…"
