"""One row: two medians of the same thing, and their ratio."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from rich.table import Table


@dataclass(frozen=True)
class Row:
    """`ours` and `theirs`, in `unit`. `aim` is the ratio ours / theirs that should be reached, in words.

    `interval` has the ratio with a probability of 95 %, as far as the measurement itself tells.
    """

    what: str
    theirs: float
    ours: float
    unit: str
    aim: str
    repeats: int
    interval: tuple[float, float] | None = None

    @property
    def ratio(self) -> float:
        """ours / theirs; infinite if theirs is nothing."""
        return self.ours / self.theirs if self.theirs else inf

    @property
    def shown_ratio(self) -> str:
        """The ratio, with its interval if it is known."""
        between = "" if self.interval is None else " ({:.2f} to {:.2f})".format(*self.interval)
        return f"{self.ratio:.2f}{between}"


def table(name: str, rows: Iterable[Row], heads: tuple[str, str] = ("without", "with")) -> Table:
    """The rows as a table; `heads` are the column titles of theirs and ours."""
    drawn = Table("what", *heads, "unit", "ratio", "aim", "repeats", title=name)
    for row in rows:
        cells = (f"{row.theirs:.4g}", f"{row.ours:.4g}", row.unit, row.shown_ratio, row.aim, str(row.repeats))
        drawn.add_row(row.what, *cells)
    return drawn
