"""`python -m tools.diagnosis.score`: how many failures of other people the diagnosis names or gets wrong."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.diagnosis.diagnose import LogReader, ProcessEnd
from dflash_deploy.diagnosis.lines import parsed
from tests.support.rows import rows_of
from tools.diagnosis.shapes import EXITS, SHAPES

# `part named`: only the part of the engine that failed is known. The decisive line is shown as for an unknown one.
Result = Literal["named", "part named", "line shown", "line not shown", "wrong"]

HALVES = ("built", "held_out")  # files of failures: to build the diagnosis with, and only to score it


# Files of failures and healthy logs that were frozen before they were scored. Rows for some of them came later.
BLIND_SETS = (
    "blind",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
    "eleventh",
    "twelfth",
    "thirteenth",
    "fourteenth",
    "fifteenth",
    "sixteenth",
    "seventeenth",
)


@dataclass(frozen=True)
class Half:
    """Failures, how many of them were named, and how many were given a wrong cause."""

    failures: int
    named: int
    wrong: int

    def __str__(self) -> str:
        return f"{self.named} of {self.failures} named, {self.wrong} wrong"


@dataclass(frozen=True)
class Frozen:
    """The first score of a set. `only_scored` is its half for which no row was made before the next set."""

    whole: Half
    healthy: int
    alarms: int
    only_scored: Half | None = None

    def __str__(self) -> str:
        half = f"; of those only scored {self.only_scored}" if self.only_scored else ""
        return f"{self.whole}, {self.alarms} of {self.healthy} healthy logs called ill{half}"


# How the diagnosis did on them before any row was made for them.
FROZEN = {
    "second": Frozen(Half(30, 13, 1), 10, 0),
    "third": Frozen(Half(43, 17, 1), 10, 0, Half(22, 10, 0)),
    "fourth": Frozen(Half(33, 16, 2), 11, 0, Half(18, 9, 1)),
    "fifth": Frozen(Half(30, 26, 1), 8, 0, Half(15, 12, 1)),
    "sixth": Frozen(Half(25, 16, 3), 8, 0, Half(13, 7, 3)),
    "seventh": Frozen(Half(26, 15, 1), 8, 0, Half(13, 8, 1)),
    "eighth": Frozen(Half(30, 20, 1), 8, 0, Half(15, 9, 1)),
    "ninth": Frozen(Half(30, 22, 0), 8, 1, Half(15, 11, 0)),
    "tenth": Frozen(Half(24, 10, 3), 12, 0, Half(12, 6, 2)),
    "eleventh": Frozen(Half(61, 33, 4), 16, 0, Half(30, 16, 2)),
    "twelfth": Frozen(Half(30, 19, 1), 8, 0, Half(16, 9, 1)),
    # its other half was scored, and rows were fixed for it, before the half that was only scored
    "thirteenth": Frozen(Half(59, 37, 2), 17, 0, Half(31, 21, 1)),
    "fourteenth": Frozen(Half(31, 24, 0), 9, 0, Half(16, 11, 0)),
    "fifteenth": Frozen(Half(37, 30, 1), 11, 0, Half(19, 14, 1)),
    "sixteenth": Frozen(Half(15, 14, 0), 5, 1, Half(6, 5, 0)),
    "seventeenth": Frozen(Half(62, 44, 1), 14, 0, Half(31, 20, 1)),
}


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
    return tuple(map(_case, rows_of(Path(__file__).parent / f"{name}.yaml")))


def result(case: Case) -> tuple[Result, str]:
    """How the diagnosis does on a failure, and the id that it names.

    If the server kept running, the costs that are shown count.
    """
    found = _reader(case).read(case.lines, ProcessEnd(case.exit_code))
    if found.diagnosis is None and case.exit_code is None:
        for cost in _reader(case).costs(case.lines):
            if cost.id in case.right:
                return "named", cost.id
    if found.diagnosis is not None:
        right: Result = "part named" if found.diagnosis.part else "named"
        return (right if found.diagnosis.id in case.right else "wrong"), found.diagnosis.id
    # lines are shown without their prefix
    shown = any(parsed(case.decisive).message in line for line in found.lines)
    return ("line shown" if shown else "line not shown"), ""


scored = cache(result)  # the same, kept: for the cases of the files, which several tests and pages ask about


def alarm(case: Case) -> str:
    """The failure that a healthy log is called, if any."""
    found = _reader(case).read(case.lines, ProcessEnd()).diagnosis
    return "" if found is None else found.id


def table() -> str:
    """The score of all sets as Markdown, and every case that is not named."""
    head = "| set | failures | named | part named | line shown | not shown | wrong | healthy logs | false alarms |"
    rows, others = [head, "|" + "---|" * 9], list[str]()
    healthy = cases("healthy")
    sets = {half: (cases(half), healthy[number::2]) for number, half in enumerate(HALVES)}
    for name in BLIND_SETS:
        both = cases(name)
        calm = tuple(one for one in both if not one.decisive)
        for half in dict.fromkeys(one.half for one in both if one.decisive):
            kept = tuple(one for one in both if one.decisive and one.half == half)
            sets[f"{name} {half}".strip()], calm = (kept, calm), ()
    for half, (failures, calm) in sets.items():
        results = {case.name: scored(case) for case in failures}
        counted = Counter(one for one, _ in results.values())
        alarms = [f"{case.name}: false alarm `{alarm(case)}`" for case in calm if alarm(case)]
        kinds: Sequence[Result] = ("named", "part named", "line shown", "line not shown", "wrong")
        numbers = (len(failures), *(counted[kind] for kind in kinds), len(calm), len(alarms))
        rows.append(f"| {half} | " + " | ".join(map(str, numbers)) + " |")
        others += [
            f"{half}: {name}: {one} {found}".rstrip() for name, (one, found) in results.items() if one != "named"
        ]
        others += [f"{half}: {line}" for line in alarms]
    before = (f"{name}, before any row was made for it: {score}" for name, score in FROZEN.items())
    return "\n".join((*rows, "", *before, "", *others))


def _reader(case: Case) -> LogReader:
    return _reader_of(case.engine, case.version)


@cache
def _reader_of(engine: str, version: str) -> LogReader:
    return LogReader(load_catalog().failures, engine, version)


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
