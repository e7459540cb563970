"""The page of the four documents that this project began with: each statement, and what covers it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.rows import rows_of
from tools.reference.markdown import GENERATED, code, joined, table

FOLDER = Path(__file__).resolve().parents[1] / "seeds"

_HEAD = f"""# What the sources say

This project began with four public documents: three model cards and a discussion. This page lists each of their
commands, settings, numbers and warnings, in other words. For each it names what covers it, or says why nothing does.

- *launch*: a test compares the command with the plan for that machine. `tests/unit/seeds/commands.yaml` has the reason
  for each difference.
- *speed*: a row of [published speeds](speeds.md). *acceptance*: a length that the family states.
- *rule*, *check*, *failure*, *setting*, *profile*, *model*: an entry of [rules](rules.md), [checks](checks.md),
  [failures](failures.md), [settings](settings.md), [profiles](profiles.md), [models](models.md).
- *page*: a page or section of these documents. *file*, *test*: a file of the repository.

A test fails if one of these no longer exists, or no longer has the number that follows the `=`.

{GENERATED.format(source="`tools/seeds/`")}
"""


@dataclass(frozen=True)
class Cover:
    """What covers a statement: its kind, its name, and after ` = ` what it must contain."""

    kind: str
    name: str
    contains: str = ""

    def __str__(self) -> str:
        """As the data has it."""
        return f"{self.kind}:{self.name}" + (f" = {self.contains}" if self.contains else "")


@dataclass(frozen=True)
class Statement:
    """One command, setting, number or warning: its document and section, its covers, and why it is not followed."""

    document: str
    says: str
    where: str
    covers: tuple[Cover, ...]
    why_not: str

    def __str__(self) -> str:
        """As a test names it."""
        return f"{self.document}: {self.says}"


def documents() -> Mapping[str, tuple[str, tuple[Statement, ...]]]:
    """The title and the statements of each document by its id."""
    found = {}
    for file in sorted(FOLDER.glob("*.yaml")):
        document = rows_of(file)
        entries = tuple(one for entry in document["statements"] for one in _statements(document["id"], entry))
        found[document["id"]] = (document["title"], entries)
    return found


def page() -> str:
    """The whole page, a table for each document."""
    parts = [_HEAD]
    for title, entries in documents().values():
        rows = ((one.where, one.says, "; ".join(map(shown, one.covers)), one.why_not) for one in entries)
        parts += [f"## {title[0].upper()}{title[1:]}\n", *table(("where", "statement", "covered by", "remark"), rows)]
    return joined(*parts)


def _statements(document: str, entry: Mapping[str, object]) -> Iterator[Statement]:
    """One statement, or one for each of its rows, whose values fill {0}, {1}, …"""
    rows = entry.get("rows", [()])
    covers = entry.get("cover", ())
    assert isinstance(rows, list)
    assert isinstance(covers, Sequence)
    for row in rows:
        filled = [cover(str(one).format(*row)) for one in covers]
        says, why_not = str(entry["says"]).format(*row), str(entry.get("why_not", ""))
        yield Statement(document, says, str(entry["where"]), tuple(filled), why_not)


def cover(text: str) -> Cover:
    """A cover as the data has it: `KIND:NAME`, or `KIND:NAME = TEXT`."""
    kind, _, rest = text.partition(":")
    name, _, contains = rest.partition(" = ")
    return Cover(kind, name, contains)


def shown(cover: Cover) -> str:
    """As the page has it: commands with the program's name, pages as links."""
    if cover.kind == "page" and cover.name.startswith("docs/"):
        path, _, anchor = cover.name.removeprefix("docs/").partition("#")
        address = path.removeprefix("reference/") if path.startswith("reference/") else f"../{path}"
        return f"[{path}]({address}{'#' if anchor else ''}{anchor})"
    if cover.kind == "command":
        return code(f"dflash-deploy {cover.name}")
    return f"{cover.kind} {code(cover.name)}"
