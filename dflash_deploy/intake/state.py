"""State files of a deployment that heal: a damaged one is renamed, reported, and treated as missing."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from dflash_deploy.errors import FileInvalid, FileMissing
from dflash_deploy.intake.documents import parse_document
from dflash_deploy.intake.files import MIB, read_bytes, shown
from dflash_deploy.intake.invalid import Invalid

T = TypeVar("T", bound=BaseModel)
V = TypeVar("V")

Report = Callable[[str], None]
"""Takes one line about a damaged file."""

DAMAGED = ".damaged"
"""Suffix of a damaged file that was set aside."""

log_damage: Report = logging.getLogger("dflash_deploy").warning
"""Reports to the package's log, which Python writes to standard error unless a program configures it."""


def read_state(path: Path, kind: type[T], *, report: Report = log_damage, limit: int = MIB) -> T | None:
    """Return the document in a state file; `None` if the file is missing or damaged.

    A damaged file is renamed to NAME.damaged and reported; so is a directory, a FIFO or a symbolic link in its place.
    Raises FileRefused if the user may not read it.
    """
    return _read(path, lambda content: parse_document(content, kind, limit=limit), report, limit)


def read_state_text(path: Path, *, report: Report = log_damage, limit: int = MIB) -> str | None:
    """Return the text of a state file, as `read_state` does for a document; text with a NUL byte is damaged."""
    return _read(path, _text, report, limit)


def _read(path: Path, parse: Callable[[bytes], V], report: Report, limit: int) -> V | None:
    try:
        return parse(read_bytes(path, limit=limit, links=False))
    except FileMissing:
        return None
    except FileInvalid as problem:
        set_aside(path, problem.message, report=report)
    except Invalid as problem:
        set_aside(path, f"{shown(path)} {problem}", report=report)
    return None


def _text(content: bytes) -> str:
    if b"\0" in content:
        raise Invalid("is damaged: it has a NUL byte")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise Invalid(f"is not UTF-8 text (byte {problem.start})") from None


def set_aside(path: Path, problem: str, *, report: Report = log_damage) -> None:
    """Rename a damaged file to NAME.damaged and report the `problem`. A file that cannot be renamed stays."""
    aside = path.with_name(f"{path.name}{DAMAGED}")
    with contextlib.suppress(OSError):
        path.replace(aside)
        report(f"{problem}; moved to {aside.name}")
        return
    report(f"{problem}; ignored")


def remove_state(path: Path, *, report: Report = log_damage) -> None:
    """Remove a state file that may be missing. What cannot be removed, such as a directory, is set aside."""
    try:
        path.unlink(missing_ok=True)
    except OSError as problem:
        set_aside(path, f"{shown(path)} cannot be removed: {problem.strerror}", report=report)
