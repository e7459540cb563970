"""The catalog's files, read once and checked against each other."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

import yaml

from dflash_deploy.catalog.hardware import Profile
from dflash_deploy.catalog.models import Family, ModelPair
from dflash_deploy.catalog.releases import EngineRelease
from dflash_deploy.catalog.speeds import PublishedSpeed
from dflash_deploy.errors import UnknownEngine, UnknownPair, UnknownProfile


@dataclass(frozen=True)
class Catalog:
    """All that is known, by name."""

    profiles: Mapping[str, Profile]
    pairs: Mapping[str, ModelPair]
    engines: Mapping[str, EngineRelease]
    speeds: tuple[PublishedSpeed, ...]

    def profile(self, name: str) -> Profile:
        """The profile of that name; raises UnknownProfile with the nearest one."""
        if name not in self.profiles:
            raise UnknownProfile(f"there is no profile {name!r}", hint=nearest(name, self.profiles))
        return self.profiles[name]

    def pair(self, name: str) -> ModelPair:
        """The pair of that name, or of the target with that repository, whatever its case.

        Raises UnknownPair: with the targets that it belongs to where a drafter is named, else with the nearest pair.
        """
        asked = name.lower()
        for pair in self.pairs.values():
            if asked in {pair.name, (pair.target.repo or "").lower()}:
                return pair
        belongs = [pair.name for pair in self.pairs.values() if (pair.drafter.repo or "").lower() == asked]
        if belongs:
            raise UnknownPair(
                f"{name} is a drafter: it proposes tokens and cannot answer by itself",
                hint=f"name the target that it belongs to: --model {belongs[0]}"
                + (f" (or {', '.join(belongs[1:])})" if belongs[1:] else ""),
            )
        raise UnknownPair(f"there is no model pair {name!r}", hint=nearest(name, self.pairs))

    def engine(self, name: str) -> EngineRelease:
        """The engine release of that name; raises UnknownEngine with the nearest one."""
        if name not in self.engines:
            raise UnknownEngine(f"there is no engine release {name!r}", hint=nearest(name, self.engines))
        return self.engines[name]


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint that names the likeliest meaning first, then all there is."""
    names = sorted(known)
    near = difflib.get_close_matches(name.lower(), names, n=1)
    return (f"did you mean {near[0]}? " if near else "") + f"there are: {', '.join(names)}"


@cache
def load_catalog() -> Catalog:
    """Read the packaged catalog. Raises pydantic.ValidationError or ValueError where a file is wrong."""
    root = resources.files("dflash_deploy.catalog")
    profiles = {p.name: p for p in map(Profile.model_validate, _documents(root / "profiles"))}
    families = [Family.model_validate(document) for document in _documents(root / "families")]
    pairs = {target.name: ModelPair(family, target) for family in families for target in family.targets}
    engines = {e.name: e for e in map(EngineRelease.model_validate, _documents(root / "engines"))}
    rows = yaml.safe_load((root / "speeds.yaml").read_text(encoding="utf-8"))
    catalog = Catalog(profiles, pairs, engines, tuple(map(PublishedSpeed.model_validate, rows)))
    for problem in _contradictions(catalog):
        raise ValueError(problem)
    return catalog


def _documents(folder: Traversable) -> list[object]:
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    return [yaml.safe_load(file.read_text(encoding="utf-8")) for file in files]


def _contradictions(catalog: Catalog) -> Iterator[str]:
    """Names in one file that no other file has."""
    for profile in catalog.profiles.values():
        if profile.pair not in catalog.pairs:
            yield f"profile {profile.name} names the pair {profile.pair}, which the catalog does not have"
        for choice in profile.engines:
            if choice.release not in catalog.engines:
                yield f"profile {profile.name} names the engine {choice.release}, which the catalog does not have"
    for speed in catalog.speeds:
        if speed.profile not in catalog.profiles or speed.pair not in catalog.pairs:
            yield f"speeds.yaml names {speed.profile} and {speed.pair}, one of which the catalog does not have"
