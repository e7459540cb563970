"""`models update`: a catalog that is newer than the program, from a file or a URL, and the way back.

Nothing is fetched but the URL that is named, and a URL is named with its digest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from dflash_deploy import __version__
from dflash_deploy.catalog.hardware import Profile
from dflash_deploy.catalog.load import OWN, Catalog, build_catalog, packaged_catalog
from dflash_deploy.catalog.update import CatalogUpdate, kept_updates, parse_update, update_in_use, updates_file
from dflash_deploy.deployment.files import PUBLIC, not_written, write_atomically
from dflash_deploy.document import Documented
from dflash_deploy.errors import CatalogRefused, NotPossible
from dflash_deploy.intake.documents import KeptUpdate, KeptUpdates, remove_state
from dflash_deploy.intake.files import read_text, shown
from dflash_deploy.operations.described import DIGEST, pinned_text
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.settings import Settings


@dataclass(frozen=True)
class CatalogChange(Documented):
    """A difference between the catalog in use and the one that replaces it."""

    kind: Literal["profile", "family", "engine"]
    """The kind of the entry."""
    name: str
    """Its name."""
    field: str
    """The field that differs, with the fields around it; empty for a whole entry."""
    old: str
    """Value before; empty if there was none."""
    new: str
    """Value after; empty if there is none."""


@dataclass(frozen=True)
class CatalogUpdated(Documented):
    """The catalog that `models update` shows, keeps or goes back to."""

    outcome: Literal["current", "planned", "kept"]
    """`current`: it is in use already. `planned`: nothing was done yet. `kept`: it is in use now."""
    date: str
    """When its entries were collected; empty for the catalog of the program."""
    digest: str
    """`sha256:` and the digest of its file; empty for the catalog of the program."""
    place: str
    """The file or URL that it comes from; empty for the catalog of the program."""
    changes: tuple[CatalogChange, ...]
    """What differs from the catalog in use."""


InUse = tuple[KeptUpdate, CatalogUpdate]


def update_catalog(place: str, *, agree: Callable[[CatalogUpdated], bool] = bool) -> CatalogUpdated:
    """Use the catalog in a file, or at a URL that ends with `#sha256=` and its digest.

    `agree` gets what changes before anything does. Raises CatalogRefused if the file, an entry of it or the digest is
    not valid; NotPossible if the program's own catalog is newer; what `pinned_text` and `read_text` raise;
    PreflightRefused for a full disk.
    """
    if "://" in place:
        # a query may have a token
        text, named = pinned_text(place), place.partition(DIGEST)[0].partition("?")[0]
    else:
        path = Path(place).expanduser().absolute()
        text, named = read_text(path), str(path)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    kept = KeptUpdate(text=text, sha256=sha256(text.encode()).hexdigest(), place=named, at=at)
    update = parse_update(text, named)
    if update.outdated:
        raise NotPossible(
            f"the catalog of dflash-deploy {__version__} is newer: {shown(Path(named))} is for {update.newer_than}",
            hint="dflash-deploy has a newer catalog already",
        )
    earlier: tuple[KeptUpdate, ...] = ()
    with suppress(CatalogRefused):
        # a damaged one is replaced
        earlier = kept_updates()[:1]
    if earlier and earlier[0].sha256 == kept.sha256:
        return replace(_shown((kept, update)), outcome="current", changes=())
    return _use((kept, update), [kept, *earlier], agree)


def revert_catalog(*, agree: Callable[[CatalogUpdated], bool] = bool) -> CatalogUpdated:
    """Go back to the catalog before the last update; from a damaged one to the catalog of the program.

    Raises NotPossible if no update is in use; PreflightRefused for a full disk.
    """
    before: list[KeptUpdate] = []
    newer: InUse | None = None
    with suppress(CatalogRefused):
        before = list(kept_updates()[1:])
        newer = (before[0], parse_update(before[0].text, before[0].place)) if before else None
    if not os.path.lexists(updates_file()):
        raise NotPossible("no catalog but the program's own is in use", hint="`dflash-deploy models update FILE`")
    return _use(newer, before if newer else [], agree)


def _use(newer: InUse | None, kept: list[KeptUpdate], agree: Callable[[CatalogUpdated], bool]) -> CatalogUpdated:
    """Check a catalog, show how it differs from the one in use, and use it."""
    found = _shown(newer)
    if not agree(found):
        return found
    path = updates_file()
    try:
        if kept:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, f"{KeptUpdates(kept).model_dump_json()}\n", mode=PUBLIC)
        else:
            remove_state(path)
    except OSError as problem:
        raise not_written(path, problem) from None
    return replace(found, outcome="kept")


def _shown(newer: InUse | None) -> CatalogUpdated:
    """What changes with a catalog. Raises CatalogRefused if it removes an entry of the program."""
    packaged, then = packaged_catalog(), build_catalog("", newer) if newer else packaged_catalog()
    if own := os.environ.get(OWN, ""):
        # both must still agree
        build_catalog(own, newer)
    for problem in (*_removed(packaged, then), *_unreadable(then)):
        raise CatalogRefused(f"the update {problem}", hint="an update adds entries and changes fields")
    before = packaged
    with suppress(CatalogRefused):
        now = update_in_use()
        before = packaged if now is None or now[1].outdated else build_catalog("", now)
    changes = tuple(catalog_changes(before, then))
    if newer is None:
        return CatalogUpdated("planned", "", "", "", changes)
    kept, update = newer
    return CatalogUpdated("planned", update.date.isoformat(), f"sha256:{kept.sha256}", kept.place, changes)


def _removed(packaged: Catalog, then: Catalog) -> Iterator[str]:
    """Entries of the program that a catalog no longer has, or has elsewhere."""
    for name, pair in packaged.pairs.items():
        if name not in then.pairs:
            yield f"removes the model {name}"
        elif then.pairs[name].family.name != pair.family.name:
            yield f"moves the model {name} to the family {then.pairs[name].family.name}"
    for profile in packaged.profiles.values():
        left = {part for _, part in _parts(then.profiles[profile.name])}
        for kind, part in _parts(profile):
            if part not in left:
                yield f"removes the {kind} {part} of the profile {profile.name}"


def _parts(profile: Profile) -> Iterator[tuple[str, str]]:
    yield from (("engine", one.release) for one in profile.engines)
    yield from (("recipe", one.name) for one in profile.recipes)


def _unreadable(catalog: Catalog) -> Iterator[str]:
    """Values of settings that `.env` could not have."""
    fields = {field.name: field for field in Settings.fields()}
    profiles, pairs = catalog.profiles.values(), catalog.pairs.values()
    every = [(one.name, one.settings) for one in profiles]
    every += [(one.name, part.settings) for one in profiles for part in one.engines]
    every += [(one.name, part.settings) for one in profiles for part in one.recipes]
    every += [(one.name, {**one.family.settings, **one.target.settings}) for one in pairs]
    for where, settings in every:
        for name, setting in settings.items():
            try:
                _ = name in fields and fields[name].read({name: str(setting.value)})
            except Refused as refusal:
                yield f"gives {where} a wrong value: {refusal.message}"


def catalog_changes(before: Catalog, after: Catalog) -> Iterator[CatalogChange]:
    """What differs between two catalogs, entry by entry and field by field."""
    old, new = _entries(before), _entries(after)
    for kind, name in dict.fromkeys([*old, *new]):
        for place, was, becomes in _differences((), old.get((kind, name)), new.get((kind, name))):
            yield CatalogChange(kind, name, ".".join(place), was, becomes)


Kind = Literal["profile", "family", "engine"]


def _entries(catalog: Catalog) -> Mapping[tuple[Kind, str], Any]:
    found: dict[tuple[Kind, str], BaseModel] = {("profile", name): one for name, one in catalog.profiles.items()}
    found |= {("family", pair.family.name): pair.family for pair in catalog.pairs.values()}
    found |= {("engine", name): one for name, one in catalog.engines.items()}
    return {key: one.model_dump(mode="json", exclude_defaults=True) for key, one in found.items()}


def _differences(place: tuple[str, ...], old: Any, new: Any) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """The places within two values that differ, with the texts of both. Lists of entries are compared by name."""
    if _named(old) and _named(new):
        old, new = _by_name(old), _by_name(new)
        if [*old] != [*new][: len(old)]:
            yield (*place, "order"), ", ".join(old), ", ".join(new)
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            yield from _differences((*place, str(key)), old.get(key), new.get(key))
    elif old != new:
        yield place, _said(old), _said(new)


def _named(value: Any) -> bool:
    """Whether a value is a list of entries with names, or of a profile's engines."""
    entries = value if isinstance(value, list) else [None]
    return all(isinstance(one, dict) and bool({"name", "release"} & one.keys()) for one in entries)


def _by_name(entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {str(one.get("name") or one["release"]): one for one in entries}


def _said(value: Any) -> str:
    """A value as one line; of an entry its title."""
    if value is None or isinstance(value, str):
        return value or ""
    title = value.get("title") if isinstance(value, dict) else None
    return str(title or json.dumps(value, ensure_ascii=False))
