"""docs/reference/faults.md: the faults that tests show, as a table."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

from tests.support.faults import SHOWN, Means, Shown

TESTS = Path(__file__).resolve().parents[2] / "tests"

MARK = "from tests.support.faults import"  # what a module holds that declares a fault
_HEAD = """# Faults

Faults that the tests create, and what the commands report. Each row is a test:

1. The test creates the state and runs the command of the row.
2. The command must end within a few seconds, with that exit code ([exit codes](exit-codes.md)) and those words.
3. `.env` and the user's other files must be unchanged, byte for byte, and the weights must be the same files.
4. The test removes the cause and runs the same command again.

Generated from the tests by `make generate`; a test compares them. See also [known
failures](failures.md) of engines, and [downloads](downloads.md) for the faults that downloads survive.
"""

_TITLES: dict[Means, str] = {
    "the command alone": "Before anything starts",
    "a hub of the tests": "During a download",
    "the real engine": "The real engine, as a process on this machine",
    "a real container": "Real containers, most of them with the real engine",
    "a script": "A script, for answers that a real engine cannot be made to give",
}


def shown() -> tuple[Shown, ...]:
    """Every fault that a test of this repository declares."""
    for path in sorted(TESTS.rglob("test_*.py")):
        if MARK in path.read_text(encoding="utf-8"):
            importlib.import_module(".".join(path.relative_to(TESTS.parent).with_suffix("").parts))
    # a module that another one has imported before has its faults first
    return tuple(sorted(SHOWN, key=lambda one: one.module))


def page(faults: tuple[Shown, ...]) -> str:
    """The whole page as Markdown."""
    parts = [_HEAD, f"{len(faults)} faults:\n"]
    for means, title in _TITLES.items():
        if rows := [one for one in faults if one.fault.means == means]:
            parts += [f"## {title} ({len(rows)})\n", *_table(rows), ""]
    return "\n".join(parts)


def _table(rows: list[Shown]) -> Iterator[str]:
    yield "| state | command | says | exit code | fix |"
    yield "|---|---|---|---|---|"
    for one in rows:
        fault = one.fault
        says = ", ".join(f"“{text}”" for text in fault.says)
        columns = (fault.name, f"`{fault.verb}`", says, f"{fault.code.value}", fault.cure)
        yield "| " + " | ".join(text.replace("|", "\\|") for text in columns) + " |"
