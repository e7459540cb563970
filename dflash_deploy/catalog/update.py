"""A catalog that is newer than the program: one file, which `models update` keeps for this user.

Its entries replace packaged ones with the same name. A custom catalog in DFLASH_CATALOG replaces both.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, Field

from dflash_deploy import __version__
from dflash_deploy.catalog.models import Family
from dflash_deploy.catalog.read import Entry, parse_entry
from dflash_deploy.catalog.releases import EngineRelease
from dflash_deploy.errors import BadInput, CatalogRefused, FileMissing, FileRefused
from dflash_deploy.intake.documents import KeptUpdate, KeptUpdates, parse_document
from dflash_deploy.intake.files import MIB, read_bytes, shown
from dflash_deploy.intake.parse import Invalid
from dflash_deploy.serve.settings import Settings

LARGEST = 5 * MIB
"""Bytes of the file with the updates: two texts of at most 1 MiB each, with their line breaks escaped."""

BACK = "`dflash-deploy models update --revert` goes back to the catalog before"

CODE = re.compile(r"trust.?remote|--trus?t?\b", re.IGNORECASE)
"""Settings and arguments, shortened ones too, that let a model's repository run code."""


def _version(text: str) -> str:
    try:
        return str(Version(text))
    except InvalidVersion:
        raise ValueError(f"`{text}` is not a version of dflash-deploy") from None


class CatalogUpdate(Entry):
    """Entries that are newer than the packaged catalog."""

    date: Annotated[date, Field(description="when the entries were collected")]
    newer_than: Annotated[
        str,
        AfterValidator(_version),
        Field(description="the last version of dflash-deploy with an older catalog: a later version ignores the file"),
    ]
    profiles: Annotated[
        list[dict[str, Any]], Field(description="hardware profiles, which may extend those of the program")
    ] = []
    families: Annotated[list[Family], Field(description="model families")] = []
    engines: Annotated[list[EngineRelease], Field(description="engine releases")] = []

    @classmethod
    def nothing(cls) -> CatalogUpdate:
        """No entries."""
        return cls(date=date.min, newer_than="0")

    @property
    def outdated(self) -> bool:
        """Whether the catalog of this program is newer."""
        return Version(self.newer_than) < Version(__version__)


def parse_update(text: str, name: str) -> CatalogUpdate:
    """The entries in a text; `name` is the file in errors. Raises CatalogRefused, also for code of a repository."""
    update = parse_entry(text, Path(name), CatalogUpdate)
    for found in _texts(update.model_dump(mode="json")):
        if CODE.search(found):
            hint = (
                f"it would let a model's repository run code; {Settings.trust_remote_code} in .env is your own decision"
            )
            raise CatalogRefused(f"{shown(Path(name))} mentions trust_remote_code", hint=hint)
    return update


def _texts(value: Any) -> Iterator[str]:
    """Each key and each text within a value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, str):
        yield value


def updates_file() -> Path:
    """The file with the update in use, in the user's directory for configuration (XDG). Raises BadInput without one."""
    named = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    try:
        place = named if named.is_absolute() else Path.home() / ".config"
    except RuntimeError:
        raise BadInput("the home directory does not exist", hint="set XDG_CONFIG_HOME to an absolute path") from None
    return place / "dflash-deploy" / "catalog.json"


def stamp() -> tuple[int, int] | None:
    """What changes with the file: inode and time; `None` if it is missing."""
    try:
        status = updates_file().stat(follow_symlinks=False)
    except (BadInput, OSError):
        return None
    return status.st_ino, status.st_mtime_ns


def kept_updates() -> tuple[KeptUpdate, ...]:
    """The update in use, then the one before it. Raises CatalogRefused if the file cannot be read or is damaged."""
    path = updates_file()
    try:
        return tuple(parse_document(read_bytes(path, limit=LARGEST, links=False), KeptUpdates, limit=LARGEST).root)
    except FileMissing:
        return ()
    except FileRefused as problem:
        raise CatalogRefused(problem.message, hint=BACK) from None
    except Invalid as problem:
        raise CatalogRefused(f"{shown(path)} {problem}", hint=BACK) from None


def update_in_use() -> tuple[KeptUpdate, CatalogUpdate] | None:
    """The update that was kept last, and its entries; `None` without one. Raises CatalogRefused."""
    for kept in kept_updates()[:1] if stamp() else ():
        if sha256(kept.text.encode()).hexdigest() != kept.sha256:
            raise CatalogRefused(f"{shown(updates_file())} is damaged: its text has another digest", hint=BACK)
        try:
            return kept, parse_update(kept.text, str(updates_file()))
        except CatalogRefused as problem:
            raise CatalogRefused(problem.message, hint=BACK) from None
    return None
