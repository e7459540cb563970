"""What a command shows: a report of lines and tables, and text without what a terminal would obey."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dflash_deploy.redact import redact_by_shape

if TYPE_CHECKING:
    from dflash_deploy.document import Documented
    from dflash_deploy.errors import DeployError
    from dflash_deploy.plan.result import Finding


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
class About:
    """What a command declares beside its options.

    `name` is its full name, `examples` its two examples for the help, the simplest one first. `changes`: it changes
    something, so lost output is a warning only. `starts_over`: nothing is kept if it is interrupted, and the settings
    of `.env` are put back first.
    """

    name: str
    examples: tuple[str, ...] = ()
    changes: bool = False
    starts_over: bool = False
    shared: tuple[str, ...] = ()
    """Names of the options of all commands that it takes."""


@dataclass(frozen=True)
class Report:
    """What a command returns: `data` for programs, `shown` for people, findings for both."""

    data: Documented | Mapping[str, object] = field(default_factory=dict)
    shown: tuple[Shown, ...] = ()
    findings: tuple[Finding, ...] = ()
    failure: DeployError | None = None
    findings_first: bool = False
    """Whether people read the findings before the rest."""


LONGEST = 2000  # characters of an error's message or hint that are shown
LONGEST_USAGE = 500  # characters of an error about the arguments

# Characters that act on a terminal or change the direction of text; line feed and tab are not among them.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def visible(text: str) -> str:
    """Return the text with control characters written as in Python: `\\x1b`, `\\u202e`."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def visible_json(text: str) -> str:
    """Return the same JSON with control characters as `\\uXXXX`; they occur only inside its strings."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def shortened(text: str, longest: int = LONGEST) -> str:
    """Return the text; a longer one with its middle replaced by its length."""
    if len(text) <= longest:
        return text
    return f"{text[: longest * 3 // 4]} … ({len(text)} characters) … {text[-longest // 8 :]}"


def quoted(text: str) -> str:
    """Return a usage error, which quotes arguments, on one line: no secret by its shape, escaped, and cut."""
    return visible(shortened(redact_by_shape(" ".join(text.split())), LONGEST_USAGE))
