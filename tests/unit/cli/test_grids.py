"""A table that is too wide for the terminal is drawn one row below the other."""

from __future__ import annotations

from rich.console import Console

from dflash_deploy.cli.report import drawn_grid
from dflash_deploy.cli.shown import Grid


def lines(grid: Grid, width: int) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as drawn:
        console.print(drawn_grid(grid, width))
    return [line.rstrip() for line in drawn.get().splitlines()]


def engines() -> Grid:
    grid = Grid("model", "weights", "", "engine", wraps=("engine",))
    grid.add_row("qwen3.5-27b-bf16", "55.6 GB", "gated", "the first release of an engine")
    grid.add_row("tiny", "6 MB", "", "another")
    return grid


def test_columns_are_as_wide_as_their_names_and_figures() -> None:
    # 16 + 7 + 5 and 16 blanks for texts, with 3 between two columns
    wide = lines(engines(), 53)
    assert wide[0].split() == ["model", "weights", "engine"]
    assert wide[2] == "qwen3.5-27b-bf16   55.6 GB   gated   the first"
    assert len(wide[1]) == 53


def test_a_narrower_terminal_gets_one_row_below_the_other() -> None:
    assert lines(engines(), 52) == [
        "qwen3.5-27b-bf16",
        "  weights 55.6 GB, gated, engine the first release",
        "  of an engine",
        "tiny",
        "  weights 6 MB, engine another",
    ]


def test_a_table_without_rows_is_its_names() -> None:
    assert lines(Grid("a", "b"), 80)[0].split() == ["a", "b"]
