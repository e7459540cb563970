"""The page of what people run into, and which failures of the catalog cover it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.support.rows import rows_of
from tools.reference.markdown import GENERATED, code, joined, table

_FILE = Path(__file__).resolve().parents[1] / "diagnosis" / "themes.yaml"

_HEAD = f"""# What people run into

Sixty-seven failures of other people, which the diagnosis had never seen, had these themes. For each, this page names
the [failures](failures.md) that cover it.

{GENERATED.format(source="`tools/diagnosis/themes.yaml`")}
"""

_DESIGN = """## Faults in the design

The same failures showed seven faults in how a log was read. These tests guard against each.
"""


@dataclass(frozen=True)
class Theme:
    """What people run into, the ids of the failures that cover it, and what they do not cover."""

    group: str
    theme: str
    failures: tuple[str, ...]
    remark: str = ""


def themes() -> tuple[Theme, ...]:
    """All themes, in the order of the page."""
    rows = rows_of(_FILE)["themes"]
    return tuple(Theme(row["group"], row["theme"], tuple(row["failures"]), row.get("remark", "")) for row in rows)


def design() -> dict[str, tuple[str, ...]]:
    """The faults of the design, each with the names of its tests."""
    rows = rows_of(_FILE)["design"]
    return {row["fault"]: tuple(row["tests"]) for row in rows}


def page() -> str:
    """Return the page as Markdown."""
    rows = ((one.group, one.theme, ", ".join(map(code, one.failures)), one.remark) for one in themes())
    guards = ((fault, ", ".join(map(code, tests))) for fault, tests in design().items())
    return joined(
        _HEAD, *table(("where", "theme", "failures", "remark"), rows), _DESIGN, *table(("fault", "tests"), guards)
    )
