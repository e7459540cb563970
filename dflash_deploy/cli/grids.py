"""How a table is drawn: in columns, or one row after the other if the terminal is too narrow for columns."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from rich import box
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dflash_deploy.cli.shown import Grid

GAP = 3
"""Blanks between two columns."""

LEAST = 16
"""Blanks that a column of texts keeps: narrower, it would break most words."""


def drawn_grid(grid: Grid, width: int) -> RenderableType:
    """Return what Rich prints for a table on a terminal with `width` blanks in a line."""
    if _needed(grid) > width:
        return Group(*_one_below_the_other(grid, width))
    drawn = Table(*grid.columns, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in drawn.columns:
        # the others are names and figures, which are copied
        column.no_wrap = column.header not in _texts(grid)
        column.overflow = "fold"
    for row in grid.rows:
        drawn.add_row(*row)
    return drawn


def _texts(grid: Grid) -> tuple[str, ...]:
    """The columns whose cells may be broken into several lines."""
    return grid.wraps or grid.columns[-1:]


def _needed(grid: Grid) -> int:
    """Blanks in a line that the columns need."""
    widths = (max(map(cell_len, cells)) for cells in zip(grid.columns, *grid.rows, strict=True))
    least = (
        min(width, LEAST) if name in _texts(grid) else width for name, width in zip(grid.columns, widths, strict=True)
    )
    return sum(least) + GAP * (len(grid.columns) - 1)


def _one_below_the_other(grid: Grid, width: int) -> Iterator[Text]:
    """Yield each row as its first cell, and below it the other cells behind the names of their columns."""
    for first, *others in grid.rows:
        yield Text(first, style="bold")
        named = zip(grid.columns[1:], others, strict=True)
        line = ", ".join(f"{name} {cell}".strip() for name, cell in named if cell)
        for part in wrap(line, width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False):
            yield Text(part)
