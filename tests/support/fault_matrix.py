"""`python -m tests.support.fault_matrix > docs/faults.md`: the faults that tests show, as a table for people."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.faults import SHOWN, Means, Shown

TESTS = Path(__file__).parents[1]

MARK = "from tests.support.faults import"
"""What a module holds that declares a fault."""

_HEAD = """# Faults

What goes wrong with a deployment, and what its commands make of it. Each row is a test: the state is made, the command
of the row is run and has to end within the seconds that stand there, with that exit code ([exit codes](exit-codes.md))
and those words. `.env`, and whatever else people keep beside it, has the same bytes afterwards, and the weights are the
same files. Then the cause is removed and the same command is run again.

The seconds are limits, counted from the start of the command to its end, on two cores that are busy with other tests.
"Then: done" means that the same command ended with 0 after the cure, which for `up` takes an answer of the real engine.
The others come to the last thing that `up` looks at before it starts an engine, the port, which the test holds.

Generated from the tests by `python -m tests.support.fault_matrix`; a test compares them.
[Failures](failures.md) lists what is known of engines that die, [downloads](downloads.md) what transfers survive.
"""

_TITLES: dict[Means, str] = {
    "the command alone": "Seen before anything is started",
    "a hub of the tests": "While weights are fetched",
    "the real engine": "The real engine, as a process of this machine",
    "a real container": "Real containers, the real engine in most of them",
    "a script": "By a script, which answers as no engine can be made to",
}


def shown() -> tuple[Shown, ...]:
    """Every fault that a test of this repository declares."""
    for path in sorted(TESTS.rglob("test_*.py")):
        if MARK in path.read_text(encoding="utf-8"):
            importlib.import_module(".".join(path.relative_to(TESTS.parent).with_suffix("").parts))
    # whoever imports a module first puts its faults first
    return tuple(sorted(SHOWN, key=lambda one: one.module))


def page(faults: tuple[Shown, ...]) -> str:
    """The whole page as Markdown."""
    parts = [_HEAD, f"There are {len(faults)} of them.\n"]
    for means, title in _TITLES.items():
        if rows := [one for one in faults if one.fault.means == means]:
            parts += [f"## {title} ({len(rows)})\n", *_table(rows), ""]
    return "\n".join(parts)


def _table(rows: list[Shown]) -> Iterator[str]:
    yield "| state | command | within | says | exit code | cure | then | test |"
    yield "|---|---|---|---|---|---|---|---|"
    for one in rows:
        fault = one.fault
        says = ", ".join(f"“{text}”" for text in fault.says)
        columns = (fault.name, f"`{fault.verb}`", f"{fault.within:g} s", says, f"{fault.code.value}", fault.cure)
        test = f"[{one.module.removeprefix('tests/')}](../{one.module}.py)"
        yield "| " + " | ".join(text.replace("|", "\\|") for text in (*columns, fault.afterwards, test)) + " |"


if __name__ == "__main__":
    sys.stdout.write(page(shown()))
