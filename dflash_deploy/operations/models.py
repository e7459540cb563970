"""`models` and `profiles`: what the catalog knows, and what this machine can serve."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from dflash_deploy.catalog.hardware import Profile
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.catalog.models import ModelPair, Weights
from dflash_deploy.catalog.read import Evidence
from dflash_deploy.catalog.recipes import Offered, offered
from dflash_deploy.catalog.releases import EngineRelease
from dflash_deploy.document import Count, Documented, Hidden
from dflash_deploy.errors import UnknownProfile
from dflash_deploy.host.machine import HostFacts, read_facts
from dflash_deploy.plan.choose import choose_profile
from dflash_deploy.planning import UNREAD
from dflash_deploy.rules.table import Candidate, survey, why_profile_does_not_fit


@dataclass(frozen=True)
class ModelRow(Documented):
    """One model: a target with its drafter."""

    name: str
    """Name, as `--model` takes it."""
    title: str
    """The model in words."""
    target: str
    """The target's repository on the Hugging Face Hub, or its path in the package."""
    drafter: str
    """The drafter's repository on the Hugging Face Hub, or its path in the package."""
    bytes: Count
    """Size of both on disk in bytes."""
    engine: str | None
    """Name of the engine release that would serve it; null if it is not compatible."""
    compatible: bool
    """Whether the profile can serve it."""
    why_not: str
    """Why it cannot; empty if it can."""


@dataclass(frozen=True)
class Models(Documented):
    """The models that the catalog knows."""

    profile: str
    """Name of the hardware profile that they were compared with."""
    models: tuple[ModelRow, ...]
    """All models, also those that are not compatible."""
    title: Hidden[str]
    """The machine of the profile, in words."""
    default: Hidden[str]
    """The model that `init` takes for the profile."""
    candidates: Hidden[tuple[Candidate, ...]]


def models(profile: str | None = None) -> Models:
    """The models of the catalog on a profile, or on that of this machine. Raises UnknownProfile."""
    catalog, facts = load_catalog(), read_facts()
    chosen = catalog.profile(profile) if profile else choose_profile(facts, catalog)
    candidates = tuple(survey(chosen, pair, facts, catalog) for pair in catalog.pairs.values())
    return Models(chosen.name, tuple(map(_row, candidates)), chosen.title, chosen.pair, candidates)


def _row(candidate: Candidate) -> ModelRow:
    pair, plan = candidate.pair, candidate.plan
    return ModelRow(
        pair.name,
        pair.title,
        target=_place(pair.target),
        drafter="" if pair.drafter.absent else _place(pair.drafter),
        bytes=pair.target.bytes + pair.drafter.bytes,
        engine=plan.engine.name if plan and not candidate.why_not else None,
        compatible=not candidate.why_not,
        why_not=candidate.why_not,
    )


def _place(weights: Weights) -> str:
    return weights.repo or weights.bundled or weights.path or ""


@dataclass(frozen=True)
class ModelProfile(Documented):
    """Whether one kind of hardware can serve a model."""

    name: str
    """Name of the hardware profile."""
    compatible: bool
    """Whether the profile can serve the model."""
    why_not: str
    """Why it cannot; empty if it can."""


@dataclass(frozen=True)
class ModelDetails:
    """One target with its drafter, and whether it can be served on each profile's own hardware."""

    pair: ModelPair
    candidates: tuple[Candidate, ...]

    def document(self) -> dict[str, object]:
        """The `data` of `models show --json`."""
        pair = self.pair
        return pair.target.model_dump(mode="json") | {
            "drafter": pair.drafter.model_dump(mode="json"),
            "family": pair.family.model_dump(mode="json", exclude={"targets", "drafter"}),
            "profiles": [
                ModelProfile(one.profile.name, not one.why_not, one.why_not).document() for one in self.candidates
            ],
        }


def model(name: str) -> ModelDetails:
    """One model by its name or its target's repository. Raises UnknownPair."""
    catalog = load_catalog()
    pair = catalog.pair(name)
    # this machine is left out
    return ModelDetails(pair, tuple(survey(profile, pair, UNREAD, catalog) for profile in catalog.profiles.values()))


@dataclass(frozen=True)
class ProfileFit(Documented):
    """One hardware profile."""

    name: str
    """Name, as `--profile` takes it."""
    title: str
    """The machine in words."""
    pair: str
    """Name of the model that it serves by default."""
    engines: list[str]
    """Names of the engine releases, in order of preference."""
    evidence: Evidence
    """`verified`: this project has run it. `reported`: the named source has. `untested`: no report is known."""
    fits: bool
    """Whether the profile fits this machine."""
    why_not: str
    """What this machine lacks for it; empty if it fits."""


@dataclass(frozen=True)
class Profiles(Documented):
    """The hardware that the catalog knows."""

    profiles: tuple[ProfileFit, ...]
    """All hardware profiles."""


def profiles() -> Profiles:
    """Every hardware profile of the catalog, after the one that is computed for this machine."""
    catalog, facts = load_catalog(), read_facts()
    every = dict(catalog.profiles)
    with suppress(UnknownProfile):
        own = choose_profile(facts, catalog)
        every = {own.name: own, **every} if own.name not in every else every
    return Profiles(tuple(_fit(one, facts) for one in every.values()))


def profile_fit(profile: Profile) -> ProfileFit:
    """Whether a profile fits this machine."""
    return _fit(profile, read_facts())


def _fit(profile: Profile, facts: HostFacts) -> ProfileFit:
    why_not = why_profile_does_not_fit(profile, facts)
    engines = [choice.release for choice in profile.engines]
    return ProfileFit(profile.name, profile.title, profile.pair, engines, profile.evidence.state, not why_not, why_not)


def profile(name: str) -> tuple[Profile, tuple[EngineRelease, ...], tuple[Offered, ...]]:
    """One profile, its engine releases in order of preference, and its recipes. Raises UnknownProfile."""
    catalog = load_catalog()
    found = catalog.profile(name)
    return found, tuple(catalog.engines[choice.release] for choice in found.engines), offered(found, catalog)
