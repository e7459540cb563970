"""One row: two medians of the same thing, and their ratio."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from rich.table import Table


@dataclass(frozen=True)
class Row:
    """`ours` and `theirs`, in `unit`. `aim` is the ratio ours / theirs that should be reached, in words."""

    what: str
    theirs: float
    ours: float
    unit: str
    aim: str
    repeats: int

    @property
    def ratio(self) -> float:
        """ours / theirs; infinite if theirs is nothing."""
        return self.ours / self.theirs if self.theirs else inf


def table(name: str, rows: Iterable[Row], heads: tuple[str, str] = ("without", "with")) -> Table:
    """The rows as a table; `heads` are the column titles of theirs and ours."""
    drawn = Table("what", *heads, "unit", "ratio", "aim", "repeats", title=name)
    for row in rows:
        cells = (f"{row.theirs:.4g}", f"{row.ours:.4g}", row.unit, f"{row.ratio:.2f}", row.aim, str(row.repeats))
        drawn.add_row(row.what, *cells)
    return drawn
