"""The page of the catalog's entries that were read again: what was wrong, and where it was corrected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.rows import rows_of
from tools.reference.markdown import GENERATED, code, joined, table
from tools.reference.seeds import Cover, cover, shown

FILE = Path(__file__).resolve().parents[1] / "facts.yaml"

_HEAD = f"""# Entries of the catalog that were read again

On 2026-11-22, 40 entries of the catalog were compared with their sources: released wheels of vLLM and SGLang, issues,
and files of repositories. These 25 were not right. For each, the page names what corrects it; the remark says what
was left as it is, and why.

Covers are named as in [what the sources say](seeds.md). A test fails if one of them no longer exists.

{GENERATED.format(source="`tools/facts.yaml`")}
"""


@dataclass(frozen=True)
class Fact:
    """One entry that was not right: what the catalog said, what the source says, and what corrects it."""

    number: int
    was: str
    source: str
    commits: tuple[str, ...]
    covers: tuple[Cover, ...]
    why_not: str


def facts() -> Sequence[Fact]:
    """The entries, by number."""
    return [
        Fact(
            number=one["number"],
            was=one["was"],
            source=one["source"],
            commits=tuple(map(str, one["commits"])),
            covers=tuple(map(cover, one["cover"])),
            why_not=one.get("why_not", ""),
        )
        for one in rows_of(FILE)
    ]


def page() -> str:
    """The whole page."""
    head = ("", "the catalog said", "the source says", "corrected by", "commit", "remark")
    rows = (
        (str(one.number), one.was, one.source, "; ".join(map(shown, one.covers)), ", ".join(map(code, one.commits)),
         one.why_not)
        for one in facts()
    )  # fmt: skip
    return joined(_HEAD, *table(head, rows))
