"""The catalog's files, read once and checked against each other."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

import yaml

from dflash_deploy.catalog.schema import EngineRelease, ModelPair, Profile
from dflash_deploy.errors import UnknownPair, UnknownProfile


@dataclass(frozen=True)
class Catalog:
    """All that is known, by name."""

    profiles: Mapping[str, Profile]
    pairs: Mapping[str, ModelPair]
    engines: Mapping[str, EngineRelease]

    def profile(self, name: str) -> Profile:
        """The profile of that name; raises UnknownProfile with the nearest one."""
        if name not in self.profiles:
            raise UnknownProfile(f"there is no profile {name!r}", hint=_nearest(name, self.profiles))
        return self.profiles[name]

    def pair(self, name: str) -> ModelPair:
        """The model pair of that name; raises UnknownPair with the nearest one."""
        if name not in self.pairs:
            raise UnknownPair(f"there is no model pair {name!r}", hint=_nearest(name, self.pairs))
        return self.pairs[name]


def _nearest(name: str, known: Iterable[str]) -> str:
    """A hint that names the likeliest meaning first, then all there is."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    return (f"did you mean {near[0]}? " if near else "") + f"there are: {', '.join(names)}"


@cache
def load_catalog() -> Catalog:
    """Read the packaged catalog. Raises pydantic.ValidationError or ValueError where a file is wrong."""
    root = resources.files("dflash_deploy.catalog")
    profiles = {p.name: p for p in map(Profile.model_validate, _documents(root / "profiles"))}
    pairs = {p.name: p for p in map(ModelPair.model_validate, _documents(root / "pairs"))}
    engines = {e.name: e for e in map(EngineRelease.model_validate, _documents(root / "engines"))}
    for profile in profiles.values():
        if profile.pair not in pairs or profile.engine not in engines:
            raise ValueError(f"profile {profile.name} names a pair or an engine that the catalog does not have")
    return Catalog(profiles, pairs, engines)


def _documents(folder: Traversable) -> list[object]:
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    return [yaml.safe_load(file.read_text(encoding="utf-8")) for file in files]
