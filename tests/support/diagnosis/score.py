"""`python -m tests.support.diagnosis.score`: how many failures of other people the diagnosis names or gets wrong."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from dflash_deploy.catalog import load_catalog
from dflash_deploy.startup import LogReader, ProcessEnd
from tests.support.diagnosis.shapes import EXITS, SHAPES

Result = Literal["named", "line shown", "line not shown", "wrong"]

HALVES = ("built", "held_out")
"""Files of failures: to build the diagnosis with, and only to score it."""


BLIND_SETS = ("blind", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh")
"""Files of failures and healthy logs that were frozen before they were scored. Rows for some of them came later."""

FROZEN = {
    "second": "13 of 30 named, 1 wrong, 0 of 10 healthy logs called ill",
    "third": "17 of 43 named, 1 wrong, 0 of 10 healthy logs called ill; of those only scored 10 of 22, 0 wrong",
    "fourth": "16 of 33 named, 2 wrong, 0 of 11 healthy logs called ill; of those only scored 9 of 18, 1 wrong",
    "fifth": "26 of 30 named, 1 wrong, 0 of 8 healthy logs called ill; of those only scored 12 of 15, 1 wrong",
    "sixth": "16 of 25 named, 3 wrong, 0 of 8 healthy logs called ill; of those only scored 7 of 13, 3 wrong",
    "seventh": "15 of 26 named, 1 wrong, 0 of 8 healthy logs called ill; of those only scored 8 of 13, 1 wrong",
    "eighth": "20 of 30 named, 1 wrong, 0 of 8 healthy logs called ill; of those only scored 9 of 15, 1 wrong",
    "ninth": "22 of 30 named, 0 wrong, 1 of 8 healthy logs called ill; of those only scored 11 of 15, 0 wrong",
    "tenth": "10 of 24 named, 3 wrong, 0 of 12 healthy logs called ill; of those only scored 6 of 12, 2 wrong",
    "eleventh": "33 of 61 named, 4 wrong, 0 of 16 healthy logs called ill; of those only scored 16 of 30, 2 wrong",
}
"""How the diagnosis did on them before any row was made for them."""


@dataclass(frozen=True)
class Case:
    """A log, how its process ended, and what tells the cause. `right` is empty if the catalog cannot know it."""

    name: str
    engine: str
    version: str
    lines: tuple[str, ...]
    exit_code: int | None
    right: tuple[str, ...] = ()
    decisive: str = ""
    half: str = ""


@cache
def cases(name: str) -> tuple[Case, ...]:
    """The cases of a file beside this module."""
    rows: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / f"{name}.yaml").read_text(encoding="utf-8"))
    return tuple(map(_case, rows))


def result(case: Case) -> tuple[Result, str]:
    """How the diagnosis does on a failure, and the id that it names.

    If the server went on, the costs that are told count.
    """
    found = _reader(case).read(case.lines, ProcessEnd(case.exit_code))
    if found.diagnosis is None and case.exit_code is None:
        for cost in _reader(case).costs(case.lines):
            if cost.id in case.right:
                return "named", cost.id
    if found.diagnosis is not None:
        return ("named" if found.diagnosis.id in case.right else "wrong"), found.diagnosis.id
    shown = any(case.decisive in line for line in found.lines)
    return ("line shown" if shown else "line not shown"), ""


def alarm(case: Case) -> str:
    """The failure that a healthy log is called, if any."""
    found = _reader(case).read(case.lines, ProcessEnd()).diagnosis
    return "" if found is None else found.id


def table() -> str:
    """The score of all sets as Markdown, and every case that is not named."""
    head = "| set | failures | named | decisive line shown | not shown | wrong | healthy logs | false alarms |"
    rows, others = [head, "|" + "---|" * 8], list[str]()
    healthy = cases("healthy")
    sets = {half: (cases(half), healthy[number::2]) for number, half in enumerate(HALVES)}
    for name in BLIND_SETS:
        both = cases(name)
        calm = tuple(one for one in both if not one.decisive)
        for half in dict.fromkeys(one.half for one in both if one.decisive):
            kept = tuple(one for one in both if one.decisive and one.half == half)
            sets[f"{name} {half}".strip()], calm = (kept, calm), ()
    for half, (failures, calm) in sets.items():
        results = {case.name: result(case) for case in failures}
        counted = Counter(one for one, _ in results.values())
        alarms = [f"{case.name}: false alarm `{alarm(case)}`" for case in calm if alarm(case)]
        kinds: Sequence[Result] = ("named", "line shown", "line not shown", "wrong")
        numbers = (len(failures), *(counted[kind] for kind in kinds), len(calm), len(alarms))
        rows.append(f"| {half} | " + " | ".join(map(str, numbers)) + " |")
        others += [
            f"{half}: {name}: {one} {found}".rstrip() for name, (one, found) in results.items() if one != "named"
        ]
        others += [f"{half}: {line}" for line in alarms]
    before = (f"{name}, before any row was made for it: {score}" for name, score in FROZEN.items())
    return "\n".join((*rows, "", *before, "", *others))


def _reader(case: Case) -> LogReader:
    return LogReader(load_catalog().failures, case.engine, case.version)


def _case(row: dict[str, Any]) -> Case:
    shape = row.get("shape", "plain")
    text = row.get("before", "") + SHAPES[shape](row["text"].rstrip("\n"))
    return Case(
        row["name"],
        row.get("engine", "vllm"),
        str(row.get("version", "0.28.0")),
        tuple(text.split("\n")),
        row.get("exit_code", EXITS.get(shape, 1)),
        tuple(row.get("right", ())),
        row.get("decisive", ""),
        row.get("half", ""),
    )


if __name__ == "__main__":
    sys.stdout.write(table() + "\n")
