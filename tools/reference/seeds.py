"""The page of the four documents that this project began with: each statement, and what covers it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.rows import rows_of
from tools.reference.markdown import BUILT, joined

FOLDER = Path(__file__).resolve().parents[1] / "seeds"

_HEAD = f"""# What the sources say

This project began with four public documents: three model cards and a discussion. `tools/seeds/` lists each of their
{{count}} commands, settings, numbers and warnings with what covers it: a launch command that a test compares with the
plan, a published speed, a rule, a check, a failure, a setting, a profile, a model or a page. A test fails if one of
them no longer exists or no longer has the number.

This page has the statements that this project does not follow as they are, with the reason.

{BUILT.format(source="`tools/seeds/`")}
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
    """The whole page: for each document the statements with a reason, by reason."""
    parts, known = list[str](), documents()
    for title, entries in known.values():
        reasons: dict[str, list[str]] = {}
        for one in entries:
            if one.why_not:
                reasons.setdefault(one.why_not, []).append(one.says)
        parts += [f"## {title[0].upper()}{title[1:]}\n"]
        parts += [f"- {'; '.join(_first(says))}: {reason}." for reason, says in reasons.items()]
        parts += [""]
    return joined(_HEAD.format(count=sum(len(entries) for _, entries in known.values())), *parts)


def _first(says: list[str]) -> Iterator[str]:
    """The first two statements with one reason, and how many others `tools/seeds/` has."""
    yield from says[:2]
    if len(says) > 2:
        yield f"{len(says) - 2} more like these"


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
