"""`models` and `profiles`: what the catalog knows, and what this machine can serve."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from dflash_deploy.catalog.hardware import Profile
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.catalog.models import ModelPair
from dflash_deploy.catalog.recipes import Offered, offered
from dflash_deploy.catalog.releases import EngineRelease
from dflash_deploy.errors import UnknownProfile
from dflash_deploy.host.machine import read_facts
from dflash_deploy.plan.choose import choose_profile
from dflash_deploy.planning import UNREAD
from dflash_deploy.rules.table import Candidate, survey, why_profile_does_not_fit


@dataclass(frozen=True)
class Models:
    """Every target with its drafter, and whether it can be served on one hardware profile."""

    profile: Profile
    candidates: tuple[Candidate, ...]

    def document(self) -> dict[str, object]:
        """The `data` of `models list --json`."""
        return {"profile": self.profile.name, "models": [_row(candidate) for candidate in self.candidates]}


def models(profile: str | None = None) -> Models:
    """The models of the catalog on a profile, or on that of this machine. Raises UnknownProfile."""
    catalog, facts = load_catalog(), read_facts()
    chosen = catalog.profile(profile) if profile else choose_profile(facts, catalog)
    return Models(chosen, tuple(survey(chosen, pair, facts, catalog) for pair in catalog.pairs.values()))


def _row(candidate: Candidate) -> dict[str, object]:
    pair = candidate.pair
    return {
        "name": pair.name,
        "title": pair.title,
        "target": pair.target.repo or pair.target.bundled,
        "drafter": pair.drafter.repo or pair.drafter.bundled,
        "bytes": pair.target.bytes + pair.drafter.bytes,
        "engine": candidate.plan.engine.name if candidate.plan and not candidate.why_not else None,
        "compatible": not candidate.why_not,
        "why_not": candidate.why_not,
    }


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
                {"name": candidate.profile.name, "compatible": not candidate.why_not, "why_not": candidate.why_not}
                for candidate in self.candidates
            ],
        }


def model(name: str) -> ModelDetails:
    """One model by its name or its target's repository. Raises UnknownPair."""
    catalog = load_catalog()
    pair = catalog.pair(name)
    # this machine is left out
    return ModelDetails(pair, tuple(survey(profile, pair, UNREAD, catalog) for profile in catalog.profiles.values()))


@dataclass(frozen=True)
class ProfileFit:
    """A hardware profile, and what this machine lacks for it; empty if it lacks nothing."""

    profile: Profile
    why_not: str

    def row(self) -> dict[str, object]:
        """The profile in `profiles list --json`."""
        return {
            "name": self.profile.name,
            "title": self.profile.title,
            "pair": self.profile.pair,
            "engines": [choice.release for choice in self.profile.engines],
            "evidence": self.profile.evidence.state,
            "fits": not self.why_not,
            "why_not": self.why_not,
        }


def profiles() -> tuple[ProfileFit, ...]:
    """Every hardware profile of the catalog, after the one that is computed for this machine."""
    catalog, facts = load_catalog(), read_facts()
    every = dict(catalog.profiles)
    with suppress(UnknownProfile):
        own = choose_profile(facts, catalog)
        every = {own.name: own, **every} if own.name not in every else every
    return tuple(ProfileFit(one, why_profile_does_not_fit(one, facts)) for one in every.values())


def profile_fit(profile: Profile) -> ProfileFit:
    """Whether a profile fits this machine."""
    return ProfileFit(profile, why_profile_does_not_fit(profile, read_facts()))


def profile(name: str) -> tuple[Profile, tuple[EngineRelease, ...], tuple[Offered, ...]]:
    """One profile, its engine releases in order of preference, and its recipes. Raises UnknownProfile."""
    catalog = load_catalog()
    found = catalog.profile(name)
    return found, tuple(catalog.engines[choice.release] for choice in found.engines), offered(found, catalog)
