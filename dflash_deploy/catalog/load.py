"""Loads the files of the catalog once and checks them against each other."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel

from dflash_deploy.catalog.computed import BRIDGED, computed, linked
from dflash_deploy.catalog.hardware import GpuModel, GpuModels, Profile, of_profile
from dflash_deploy.catalog.log_signs import PhaseMark
from dflash_deploy.catalog.models import Dialect, Family, ModelPair
from dflash_deploy.catalog.read import own_files, packaged_files, read_entry, read_extended, read_packaged
from dflash_deploy.catalog.releases import EngineRelease, RayRelease
from dflash_deploy.catalog.settings import all_setting_names, passed_on
from dflash_deploy.catalog.speeds import PublishedSpeed
from dflash_deploy.errors import CatalogRefused, UnknownEngine, UnknownPair, UnknownProfile
from dflash_deploy.intake.files import shown
from dflash_deploy.intake.parse import parse_packaged_yaml

if TYPE_CHECKING:
    from dflash_deploy.catalog.failures import Failure
    from dflash_deploy.catalog.log_signs import LogSign
    from dflash_deploy.catalog.releases import ReleaseOptions

T = TypeVar("T", bound=BaseModel)

# The environment variable with the directory of a custom catalog, which has the same folders and files.
OWN = "DFLASH_CATALOG"

FOLDERS = ("profiles", "families", "engines")
FAILURES = "failures.yaml"
GPUS = "gpus.yaml"
PACKAGED = "dflash_deploy.catalog"

MOST_ALIKE = 5  # names in the hint of a list that is too long for a line


@dataclass(frozen=True)
class Catalog:
    """All entries of the catalog, by name.

    `own` is the directory of a custom catalog.
    """

    profiles: Mapping[str, Profile]
    pairs: Mapping[str, ModelPair]
    engines: Mapping[str, EngineRelease]
    speeds: tuple[PublishedSpeed, ...]
    phases: tuple[PhaseMark, ...]
    own: Path | None = None

    @cached_property
    def failures(self) -> tuple[Failure, ...]:
        """Fingerprints of known failures, the most specific first. They are read when they are used first."""
        return _failures(resources.files(PACKAGED), self.own)

    @cached_property
    def log_signs(self) -> tuple[LogSign, ...]:
        """How the logs of each engine are recognised. They are read when they are used first."""
        from dflash_deploy.catalog.log_signs import LogSign  # noqa: PLC0415 - needed to explain a log

        return _rows(resources.files(PACKAGED), "log_signs.yaml", LogSign)

    @cached_property
    def gpu_models(self) -> tuple[GpuModel, ...]:
        """GPUs that profiles are computed for: those of profiles, of a custom catalog, then of the packaged file."""
        files = [read_entry(self.own / GPUS, GpuModels)] if self.own is not None and (self.own / GPUS).exists() else []
        files.append(read_packaged(resources.files(PACKAGED) / GPUS, GpuModels))
        described = filter(None, map(of_profile, self.profiles.values()))
        return (*described, *(one for file in files for one in file.gpus))

    def profile(self, name: str) -> Profile:
        """The profile of that name, which may be computed.

        Raises UnknownProfile with a hint that suggests the closest name.
        """
        found = self.find_profile(name)
        if found is None:
            raise UnknownProfile(f"`{name}` is not a known profile", hint=nearest(name, self.profiles))
        return found

    def find_profile(self, name: str) -> Profile | None:
        """The profile of that name or of one GPU with it, in any case, else the computed one; `None` without any.

        A name of several GPUs may end in `-nvlink`: the same GPUs with NVLink bridges.
        """
        name = name.lower()
        if name.endswith(BRIDGED):
            plain = self.find_profile(name.removesuffix(BRIDGED))
            return linked(plain, name) if plain is not None and plain.match.gpus > 1 else None
        of_one = (one for one in self.profiles.values() if one.match.gpus == one.hardware.machines == 1)
        named = next((one for one in of_one if name in map(str.lower, one.match.names)), None)
        return self.profiles.get(name) or named or computed(name, self.gpu_models, self.profiles, self.engines)

    def pair(self, name: str) -> ModelPair:
        """The pair of that name, or of the target with that repository; upper and lower case are equal.

        Raises UnknownPair. For a drafter the hint names its targets, otherwise the closest pair.
        """
        asked = name.lower().removeprefix("https://").removeprefix("huggingface.co/").removeprefix("hf.co/")
        for pair in self.pairs.values():
            if asked == pair.name or (pair.target.repo and asked == pair.target.repo.lower()):
                return pair
        belongs = [p.name for p in self.pairs.values() if p.drafter.repo and asked == p.drafter.repo.lower()]
        if belongs:
            raise UnknownPair(
                f"`{name}` is a drafter: it proposes tokens and cannot answer by itself",
                hint=f"name its target: --model {belongs[0]}"
                + (f" (or {', '.join(belongs[1:])})" if belongs[1:] else ""),
            )
        raise UnknownPair(
            f"`{name}` is not a known model", hint=nearest(name, self.pairs, "dflash-deploy models list --all")
        )

    def with_family(self, family: Family) -> Catalog:
        """The catalog with one more family, whose models replace those of the same name."""
        added = {target.name: ModelPair(family, target) for target in family.targets}
        return replace(self, pairs={**self.pairs, **added})

    def with_release(self, release: EngineRelease) -> Catalog:
        """The catalog with one more release, last on the profiles that offer one of its engine, with its settings."""
        profiles = dict(self.profiles)
        for name, profile in profiles.items():
            like = (one for one in profile.engines if self.engines[one.release].engine == release.engine)
            for one in islice(like, 1):
                added = one.model_copy(update={"release": release.name})
                profiles[name] = profile.model_copy(update={"engines": [*profile.engines, added]})
        return replace(self, profiles=profiles, engines={**self.engines, release.name: release})

    def engine(self, name: str) -> EngineRelease:
        """The engine release of that name. Raises UnknownEngine with a hint that suggests the closest name."""
        if name not in self.engines:
            raise UnknownEngine(f"`{name}` is not a known engine release", hint=nearest(name, self.engines))
        return self.engines[name]

    @cached_property
    def options(self) -> Mapping[str, frozenset[str]]:
        """The options of each release whose own parser was asked. They are read when they are used first."""
        return {row.release: frozenset(row.options.split()) for row in self._release_options}

    @cached_property
    def variables(self) -> Mapping[str, frozenset[str]]:
        """The variables of each release whose own list was read, such as those that begin with VLLM_."""
        return {release: frozenset(options) for release, options in self.options_of_variables.items()}

    @cached_property
    def options_of_variables(self) -> Mapping[str, Mapping[str, str]]:
        """The option of each such variable, with its opposite after `|` for a switch; empty if it is none."""
        rows = (
            (row.release, (word.partition("=")[::2] for word in row.variables.split())) for row in self._release_options
        )
        return {release: known for release, words in rows if (known := dict(words))}

    @cached_property
    def _release_options(self) -> tuple[ReleaseOptions, ...]:
        from dflash_deploy.catalog.releases import ReleaseOptions  # noqa: PLC0415 - needed to check EXTRA_ARGS

        return _rows(resources.files(PACKAGED), "options.yaml", ReleaseOptions)


def nearest(name: str, known: Iterable[str], lists: str = "") -> str:
    """A hint with the closest name first, then the valid names.

    `lists` is the command that prints them: with it, only those that begin as `name` does are in the hint.
    """
    names, word = sorted(known), name.lower()
    near = difflib.get_close_matches(word, names, n=1)
    guess = f"did you mean {near[0]}? " if near else ""
    if not lists:
        return f"{guess}valid names: {', '.join(names)}"
    alike = [one for one in names if word and one.startswith(word)][:MOST_ALIKE]
    examples = f"such as {', '.join(alike)}; " if alike else ""
    return f"{guess}{examples}`{lists}` prints all {len(names)} names"


def load_catalog() -> Catalog:
    """The packaged catalog, extended by the directory in DFLASH_CATALOG.

    Later entries replace those of the same name. Raises CatalogRefused with file and key if an entry is not valid.
    """
    return _load(os.environ.get(OWN, ""))


def packaged_catalog() -> Catalog:
    """The packaged catalog, without any other entries."""
    return _load("")


@cache
def load_dialects() -> tuple[Dialect, ...]:
    """The marks of known chat templates, the first match first."""
    return _rows(resources.files(PACKAGED), "dialects.yaml", Dialect)


@cache
def load_ray_releases() -> tuple[RayRelease, ...]:
    """Releases of Ray, the oldest first."""
    return _rows(resources.files(PACKAGED), "ray.yaml", RayRelease)


@cache
def _load(own: str) -> Catalog:
    """The packaged catalog with the entries of a custom catalog. Raises CatalogRefused."""
    packaged, root = resources.files(PACKAGED), _own_root(own) if own else None
    own_profiles = None if root is None else root / "profiles"
    profiles = {entry.name: entry for entry in read_extended(packaged / "profiles", own_profiles, Profile)}
    families = {entry.name: entry for entry in _entries(packaged, root, "families", Family)}
    engines = {entry.name: entry for entry in _entries(packaged, root, "engines", EngineRelease)}
    pairs = {target.name: ModelPair(family, target) for family in families.values() for target in family.targets}
    speeds, phases = _rows(packaged, "speeds.yaml", PublishedSpeed), _rows(packaged, "phases.yaml", PhaseMark)
    catalog = Catalog(profiles, pairs, engines, speeds, phases, root)
    if root is not None and (root / FAILURES).exists():
        # an error in it is reported by every command
        _ = catalog.failures
    for problem in _contradictions(catalog):
        raise CatalogRefused(problem, hint="write the name exactly as in the file of that entry")
    return catalog


def _rows(root: Traversable, file: str, kind: type[T]) -> tuple[T, ...]:
    """A packaged file that is a list of entries."""
    return tuple(map(kind.model_validate, parse_packaged_yaml((root / file).read_text(encoding="utf-8"))))


def _own_root(own: str) -> Path:
    try:
        root = Path(own).expanduser()
    except RuntimeError:
        hint = "write an absolute path"
        raise CatalogRefused(f"{OWN}={own}: the home directory does not exist", hint=hint) from None
    try:
        there = [part for part in (*FOLDERS, FAILURES, GPUS) if (root / part).exists()]
    except (OSError, ValueError) as problem:
        hint = f"check the path in {OWN}"
        raise CatalogRefused(f"{OWN}={shown(root)} cannot be read: {problem}", hint=hint) from None
    if not there:
        hint = f"a catalog has at least one of the folders {', '.join(FOLDERS)}, {GPUS} or {FAILURES}"
        raise CatalogRefused(f"{OWN}={own} contains no catalog", hint=hint)
    return root


def _entries(packaged: Traversable, own: Path | None, folder: str, kind: type[T]) -> Iterator[T]:
    for file in packaged_files(packaged / folder):
        yield read_packaged(file, kind)
    if own is not None and (own / folder).is_dir():
        for path in own_files(own / folder):
            yield read_entry(path, kind)


def _failures(packaged: Traversable, own: Path | None) -> tuple[Failure, ...]:
    """Fingerprints of a custom catalog are checked before the packaged ones and replace those with the same id."""
    from dflash_deploy.catalog.failures import Failures, ranked  # noqa: PLC0415 - 0.1 s, needed if an engine fails

    first = read_entry(own / FAILURES, Failures).failures if own is not None and (own / FAILURES).exists() else []
    replaced = {failure.id for failure in first}
    files = (read_packaged(file, Failures) for file in packaged_files(packaged / "failures"))
    others = (failure for file in files for failure in file.failures if failure.id not in replaced)
    return (*ranked(first), *ranked(others))


def _contradictions(catalog: Catalog) -> Iterator[str]:
    """Names in one file that no other file defines."""
    for profile in catalog.profiles.values():
        for choice in profile.engines:
            if choice.release not in catalog.engines:
                yield f"profile {profile.name} names the engine {choice.release}, which is not in the catalog"
        for name in _set_by(profile):
            if name not in all_setting_names() and not passed_on(name):
                near = difflib.get_close_matches(name, all_setting_names(), n=1)
                yield f"profile {profile.name} sets {name}, which is not a setting" + (f" ({near[0]}?)" if near else "")
    yield from _wrong_recipes(catalog)
    yield from _unknown_bases(catalog)
    yield from _speeds_of_others(catalog)


def _set_by(profile: Profile) -> Iterator[str]:
    """Names of the settings of a profile, of its engines and of its recipes."""
    yield from profile.settings
    for choice in profile.engines:
        yield from choice.settings
    for recipe in profile.recipes:
        yield from recipe.settings


def _wrong_recipes(catalog: Catalog) -> Iterator[str]:
    """Recipes with names that nothing defines."""
    for profile in catalog.profiles.values():
        recipes = profile.recipes
        for recipe in recipes:
            where = f"recipe {recipe.name} of profile {profile.name}"
            if recipe.pair not in catalog.pairs:
                yield f"{where} names the pair {recipe.pair}, which is not in the catalog"
            if recipe.engine not in {choice.release for choice in profile.engines}:
                yield f"{where} names the engine {recipe.engine}, which the profile does not offer"
        if len({recipe.name for recipe in recipes}) < len(recipes):
            yield f"profile {profile.name} has two recipes of one name"


def _speeds_of_others(catalog: Catalog) -> Iterator[str]:
    """Speeds that are not beside what they were measured with."""
    for profile in catalog.profiles.values():
        if profile.speed and profile.speed_of not in catalog.pairs:
            yield f"profile {profile.name} has a speed of {profile.speed_of or 'no pair'}, which is not in the catalog"
    for speed in catalog.speeds:
        if speed.profile not in catalog.profiles or speed.pair not in catalog.pairs:
            yield f"speeds.yaml names {speed.profile} and {speed.pair}, one of which is not in the catalog"
        elif speed.engine not in _engines(catalog, speed.profile):
            yield f"speeds.yaml has a speed of {speed.engine} on {speed.profile}, which the profile does not offer"


def _engines(catalog: Catalog, profile: str) -> set[str]:
    """The engines of a profile whose releases are known."""
    releases = (catalog.engines.get(choice.release) for choice in catalog.profiles[profile].engines)
    return {release.engine for release in releases if release is not None}


def _unknown_bases(catalog: Catalog) -> Iterator[str]:
    # the packaged GPUs are read when they are needed
    if catalog.own is None or not (catalog.own / GPUS).exists():
        return
    for model in catalog.gpu_models:
        if model.like is not None and model.like not in catalog.profiles:
            yield f"GPU {model.name} names the profile {model.like}, which is not in the catalog"
