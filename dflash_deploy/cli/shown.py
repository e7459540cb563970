"""What a command returns: data for programs; lines, styled lines and tables for people. `report` draws them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dflash_deploy.errors import DeployError
    from dflash_deploy.plan import Finding


class Grid:
    """A table without frames, whose cells can be copied. `wraps` are the columns of texts, else the last one."""

    def __init__(self, *columns: str, wraps: tuple[str, ...] = ()) -> None:
        self.columns = columns
        self.wraps = wraps
        self.rows: list[tuple[str, ...]] = []

    def add_row(self, *cells: str) -> None:
        """Add a row with one cell for each column."""
        self.rows.append(cells)


class Styled:
    """A line of parts, each with a style of Rich, such as `bold` or `dim`; an empty style is plain text."""

    def __init__(self, *parts: tuple[str, str]) -> None:
        self.parts = parts


Shown = str | Grid | Styled


@dataclass(frozen=True)
class Report:
    """What a command returns: `data` for programs, `shown` for people, findings for both."""

    data: Mapping[str, object] = field(default_factory=dict)
    shown: tuple[Shown, ...] = ()
    findings: tuple[Finding, ...] = ()
    failure: DeployError | None = None
