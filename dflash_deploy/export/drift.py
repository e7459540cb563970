"""What in a folder of manifests differs from a fresh export, value by value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dflash_deploy.intake import Invalid, parse_yaml

MISSING = "missing"
"""Shown for a value or a file that only one side has."""

LONGEST = 120
"""Characters of a shown value."""


@dataclass(frozen=True)
class Difference:
    """One value that differs. `place` is its path in the document, such as `data.MAX_NUM_SEQS`; empty for the file."""

    file: str
    place: str
    folder: str
    plan: str


def differences(folder: Mapping[str, str], plan: Mapping[str, str]) -> tuple[Difference, ...]:
    """Each value in which the texts of a folder differ from those that the plan gives, in the order of the files.

    `folder` has the files of the last export that still exist.
    """
    return tuple(
        found for name in sorted({*folder, *plan}) for found in _of_file(name, folder.get(name), plan.get(name))
    )


def _of_file(name: str, folder: str | None, plan: str | None) -> Iterator[Difference]:
    if folder == plan:
        return
    if folder is None or plan is None:
        yield Difference(name, "", MISSING if folder is None else "exists", MISSING if plan is None else "exists")
        return
    found = tuple(_of_documents(name, folder, plan)) if name.endswith(".yaml") else ()
    # another text with the same values: a comment, or the order of the keys
    yield from found or (Difference(name, "", "another text", "the exported text"),)


def _of_documents(name: str, folder: str, plan: str) -> Iterator[Difference]:
    try:
        there = parse_yaml(folder)
    except Invalid as problem:
        yield Difference(name, "", str(problem), "the exported text")
        return
    yield from _of_values(name, "", there, parse_yaml(plan))


def _of_values(name: str, place: str, there: Any, here: Any) -> Iterator[Difference]:
    if isinstance(there, dict) and isinstance(here, dict):
        for key in {**here, **there}:
            inner = f"{place}.{key}" if place else str(key)
            yield from _of_values(name, inner, there.get(key, _NONE), here.get(key, _NONE))
    elif isinstance(there, list) and isinstance(here, list):
        for index in range(max(len(there), len(here))):
            one, other = (side[index] if index < len(side) else _NONE for side in (there, here))
            yield from _of_values(name, f"{place}[{index}]", one, other)
    elif there != here or type(there) is not type(here):
        yield Difference(name, place, _shown(there), _shown(here))


_NONE = object()
"""In the place of a value that a document does not have."""


def _shown(value: Any) -> str:
    if value is _NONE:
        return MISSING
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= LONGEST else text[:LONGEST] + "…"
