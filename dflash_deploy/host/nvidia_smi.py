"""Finds nvidia-smi and queries fields, with old and new versions."""

from __future__ import annotations

import csv
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.host.ask import CommandOutput, ask

NAME = "nvidia-smi"
WSL = Path("/usr/lib/wsl/lib/nvidia-smi")
"""The path of nvidia-smi under WSL. One that a distribution installed, found first on the PATH, sees no GPU there."""

TIMEOUT = 20.0
"""Seconds for nvidia-smi. It initialises the driver, which takes a few seconds; a hung driver never responds."""

_UNKNOWN_FIELD = re.compile(r'Field "([\w.]+)" is not a valid field to query')
_SUCCESSORS = {"driver_version": "kmd_version"}
"""nvidia-smi 610 and newer call driver_version deprecated; CUDA 14 removes it."""


@dataclass(frozen=True)
class Table:
    """The output of nvidia-smi: for each line a mapping from field to cell.

    `problem` says why some or all lines are missing. `absent` means that nvidia-smi is not installed.
    """

    rows: tuple[Mapping[str, str], ...] = ()
    problem: str = ""
    absent: bool = False


def programs() -> tuple[str, ...]:
    """The nvidia-smi programs of this machine, in the order in which to try them."""
    found = shutil.which(NAME)
    places = [found] if found else []
    if os.access(WSL, os.X_OK) and found != str(WSL):
        places.append(str(WSL))
    return tuple(places)


def query(kind: str, fields: tuple[str, ...], *, program: str | None = None, timeout: float = TIMEOUT) -> Table:
    """The rows of `--query-KIND=FIELDS`, from the first nvidia-smi that responds.

    A field that this nvidia-smi does not know is not queried, and its cell is empty.
    """
    table = Table(absent=True, problem=f"{NAME} is not installed")
    for place in (program,) if program else programs():
        table = _query(place, kind, fields, timeout)
        if table.rows or not table.problem:
            break
    return table


def listing(program: str | None = None, *, timeout: float = TIMEOUT) -> str:
    """The output of `nvidia-smi -L`: GPUs and their MIG slices. Empty if it fails."""
    answers = (ask(place, "-L", timeout=timeout) for place in ((program,) if program else programs()))
    return next((answer.out for answer in answers if answer.good), "")


def _query(program: str, kind: str, fields: tuple[str, ...], timeout: float) -> Table:
    asked = list(fields)
    while True:
        answer = ask(program, f"--query-{kind}={','.join(asked)}", "--format=csv,noheader,nounits", timeout=timeout)
        unknown = _UNKNOWN_FIELD.search(answer.out + answer.err)
        if unknown is None or unknown[1] not in asked or len(asked) == 1:
            break
        place = asked.index(unknown[1])
        asked[place : place + 1] = [_SUCCESSORS[unknown[1]]] if unknown[1] in _SUCCESSORS else []
    rows = tuple(parse(answer.out, tuple(asked), fields))
    return Table(rows, "" if answer.good else _problem(answer, rows, timeout), absent=answer.absent)


def parse(text: str, asked: tuple[str, ...], fields: tuple[str, ...] = ()) -> Iterator[Mapping[str, str]]:
    """The lines with exactly one cell per queried field; other lines are skipped.

    Cells such as `[N/A]`, `[Not Supported]` and `[Insufficient Permissions]` are empty.
    """
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) != len(asked):
            continue
        cells = {_original(name): _cell(cell) for name, cell in zip(asked, row, strict=True)}
        yield {name: cells.get(name, "") for name in fields or asked}


def _original(name: str) -> str:
    return next((old for old, new in _SUCCESSORS.items() if new == name), name)


def _cell(text: str) -> str:
    text = text.strip()
    return "" if text.startswith("[") or text == "N/A" else text


def _problem(answer: CommandOutput, rows: tuple[Mapping[str, str], ...], timeout: float) -> str:
    """Why nvidia-smi failed, in its own words if it printed any."""
    if answer.late:
        return f"{NAME} did not respond within {timeout:g} s: the driver hangs"
    if answer.code is None:
        return answer.problem
    said = [line for line in (answer.out + answer.err).splitlines()[len(rows) :] if line.strip()]
    return f"{NAME} fails: {said[0] if said else f'it exited with code {answer.code}'}"
