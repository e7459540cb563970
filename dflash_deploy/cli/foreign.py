"""The table of a recipe of others: theirs, ours, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.shown import Grid, Shown

if TYPE_CHECKING:
    from dflash_deploy.operations.foreign import ForeignPlan

LONGEST_THEIRS = 60
"""Characters of theirs in the table; --json has all of them."""

From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="FILE|URL|-",
        help="Take over a published command, script, Compose file, .env, sparkrun recipe or pod. Runs nothing of it.",
    ),
]


def recipe_lines(found: ForeignPlan) -> Iterator[Shown]:
    """Every item of a recipe with its fate, and the number of each fate."""
    from dflash_deploy.foreign.mapping import FATES

    table = Grid("theirs", "fate", "ours", "why", wraps=("theirs", "ours", "why"))
    for row in found.items:
        theirs = {"command": row.value, "variable": f"{row.name}={row.value}"}.get(row.kind, f"{row.name} {row.value}")
        cut = theirs if len(theirs) <= LONGEST_THEIRS else f"{theirs[: LONGEST_THEIRS - 1]}…"
        table.add_row(" ".join(cut.split()), row.fate, row.ours, row.why)
    yield table
    yield ""
    yield f"recipe   {found.form}, checked against {found.engine}"
    for fate, meaning in FATES.items():
        if count := found.counts.get(fate):
            yield f"         {count} {fate}: {meaning}"
