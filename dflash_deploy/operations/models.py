"""`models` and `profiles`: what the catalog knows, what this machine can serve, and weights that can go."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from shutil import rmtree

from dflash_deploy.catalog.hardware import Profile
from dflash_deploy.catalog.load import Catalog, load_catalog
from dflash_deploy.catalog.models import ModelPair, Weights
from dflash_deploy.catalog.read import Evidence
from dflash_deploy.catalog.recipes import Offered, evidence, offered
from dflash_deploy.catalog.releases import EngineRelease
from dflash_deploy.deployment.directory import Deployment, deployments_at_home
from dflash_deploy.deployment.files import STATE
from dflash_deploy.document import Count, Documented, Hidden
from dflash_deploy.errors import BadInput, DeployError, NotPossible, UnknownProfile
from dflash_deploy.host.machine import HostFacts, read_facts
from dflash_deploy.intake.files import read_beginning
from dflash_deploy.plan.choose import NO_ROOM, RankedPair, best, choose_profile
from dflash_deploy.plan.command import in_home
from dflash_deploy.plan.compatible import obstacles
from dflash_deploy.plan.memory import GIB
from dflash_deploy.plan.propose import directory_of
from dflash_deploy.planning import UNREAD
from dflash_deploy.rules.table import Candidate, survey, why_profile_does_not_fit
from dflash_deploy.serve.settings import Settings


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
    max_model_len: int | None
    """Longest sequence in tokens that a plan gives it; null if it is not compatible."""
    max_num_seqs: int | None
    """Sequences at the same time; null if it is not compatible."""
    tokens_per_s: float | None
    """Tokens per second of all requests at the same time, published or expected; null if it is not compatible."""
    released: date | None
    """When its base model was published; null if unknown."""
    evidence: Evidence
    """Whether it was run with this engine on this hardware."""


@dataclass(frozen=True)
class Models(Documented):
    """The models that the catalog knows."""

    profile: str
    """Name of the hardware profile that they were compared with."""
    models: tuple[ModelRow, ...]
    """All models, also those that are not compatible: first those that are, the best of them first."""
    title: Hidden[str]
    """The machine of the profile, in words."""


def models(profile: str | None = None, memory: int | None = None) -> Models:
    """The models of the catalog on a profile, or on that of this machine, in the order in which `plan` ranks them.

    `memory` are the bytes of one GPU that is not here: the profile with the nearest memory answers for it. Toys are
    listed for processors only. Raises UnknownProfile.
    """
    catalog, facts = load_catalog(), read_facts()
    if memory is not None:
        chosen = _with_memory(catalog, memory)
    else:
        chosen = catalog.profile(profile) if profile else choose_profile(facts, catalog)
    fitting = {one.pair.name: one for one in best(chosen, catalog) if one.lack < NO_ROOM}
    pairs = [pair for pair in catalog.pairs.values() if chosen.match.gpus == 0 or not pair.toy]
    why_not = {pair.name: _why_not(chosen, pair, facts, catalog, fits=pair.name in fitting) for pair in pairs}
    order = {name: number for number, name in enumerate(fitting)}
    rows = [_row(pair, why_not[pair.name], chosen, fitting.get(pair.name)) for pair in pairs]
    rows.sort(key=lambda row: (not row.compatible, order.get(row.name, 0)))
    return Models(chosen.name, tuple(rows), chosen.title)


def _with_memory(catalog: Catalog, memory: int) -> Profile:
    """The profile of one GPU whose memory is nearest, with this memory in its place."""
    gib = memory / GIB
    names = (model.name for model in catalog.gpu_models)
    near = min(map(catalog.profile, names), key=lambda one: abs(one.hardware.memory_gib - gib))
    hardware = near.hardware.model_copy(update={"memory_gib": gib})
    return near.model_copy(update={"title": f"{gib:.0f} GiB, as {near.title}", "hardware": hardware})


def _why_not(profile: Profile, pair: ModelPair, facts: HostFacts, catalog: Catalog, *, fits: bool) -> str:
    """Why a pair cannot be served on a profile; empty if it can."""
    if catalog.find_profile(profile.name) == profile:
        return survey(profile, pair, facts, catalog).why_not
    blocked = [obstacles(profile, pair, catalog.engines[choice.release]) for choice in profile.engines]
    if all(blocked):
        return min(blocked, key=len)[0]
    return (
        "" if fits else f"weights, activations and a short context take more than {profile.hardware.memory_gib:.0f} GiB"
    )


def _row(pair: ModelPair, why_not: str, profile: Profile, found: RankedPair | None) -> ModelRow:
    found = None if why_not else found
    known = evidence(profile, pair, found.engine).state if found else "untested"
    return ModelRow(
        pair.name,
        pair.title,
        target=_place(pair.target),
        drafter="" if pair.drafter.absent else _place(pair.drafter),
        bytes=pair.target.bytes + pair.drafter.bytes,
        engine=found.engine.name if found else None,
        compatible=not why_not,
        why_not=why_not,
        max_model_len=found.sizing.max_model_len if found else None,
        max_num_seqs=found.sizing.max_num_seqs if found else None,
        tokens_per_s=round(found.speed, 1) if found else None,
        released=pair.family.released,
        evidence=known,
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
class StoredWeights(Documented):
    """A directory with the weights of a target or of a drafter."""

    directory: Path
    """Its path."""
    bytes: Count
    """Size of its files in bytes."""
    used_by: Sequence[Path]
    """Directories of the deployments that name it, or whose earlier settings do."""


@dataclass(frozen=True)
class Removal(Documented):
    """Weights on disk that `models rm` or `models prune` is about."""

    weights: Sequence[StoredWeights]
    """The directories that no deployment names."""
    kept: Sequence[StoredWeights]
    """The directories that stay, since a deployment names them."""
    removed: bool
    """Whether the former were removed."""


MOST_STATE = 1 << 20  # bytes of a state file that are searched for the path of weights


def remove(names: Sequence[str], models_dir: Path, here: Path, *, agreed: bool) -> Removal:
    """Remove the weights of these pairs that no deployment names; of all pairs of the catalog if `names` is empty.

    Only shows them unless `agreed`. Deployments are the one in `here` and those below `~/dflash`. Raises UnknownPair;
    BadInput if a model that is named has no weights there; NotPossible if they cannot be removed.
    """
    catalog, root = load_catalog(), in_home(models_dir).absolute()
    pairs = [catalog.pair(name) for name in names] or list(catalog.pairs.values())
    places = dict.fromkeys(
        Path(directory_of(weights, root))
        for pair in pairs
        for weights in (pair.target, pair.drafter)
        if weights.repo is not None and not (weights is pair.drafter and weights.absent)
    )
    deployments = [Deployment(place) for place in dict.fromkeys([here.absolute(), *deployments_at_home()])]
    found = [_stored(place, deployments) for place in places if place.is_dir() and not place.is_symlink()]
    if names and not found:
        raise BadInput(f"{root} has no weights of {', '.join(names)}", hint="name their directory with --models-dir")
    free = [one for one in found if not one.used_by]
    for one in free if agreed else ():
        try:
            rmtree(one.directory)
        except OSError as problem:
            raise NotPossible(f"{one.directory} cannot be removed: {problem}", hint="check who owns it") from None
    return Removal(free, [one for one in found if one.used_by], agreed and bool(free))


def _stored(place: Path, deployments: Sequence[Deployment]) -> StoredWeights:
    size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file() and not file.is_symlink())
    return StoredWeights(place, size, [one.directory for one in deployments if _names(one, place)])


def _names(deployment: Deployment, place: Path) -> bool:
    """Whether the settings of a deployment, or earlier ones that it can go back to, name a directory."""
    with suppress(DeployError):
        for field in (Settings.model_host_path, Settings.drafter_host_path):
            written = deployment.values.get(field.name)
            if written and deployment.path(written) == place:
                return True
    state = deployment.directory / STATE
    files = [file for file in state.glob("*") if file.is_file() and file.stat().st_size <= MOST_STATE]
    return any(place.name in read_beginning(file, MOST_STATE) for file in files)


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
    first = next(best(profile, load_catalog()))
    state = evidence(profile, first.pair, first.engine).state
    return ProfileFit(profile.name, profile.title, first.pair.name, engines, state, not why_not, why_not)


def profile(name: str) -> tuple[Profile, tuple[EngineRelease, ...], tuple[Offered, ...]]:
    """One profile, its engine releases in order of preference, and its recipes. Raises UnknownProfile."""
    catalog = load_catalog()
    found = catalog.profile(name)
    return found, tuple(catalog.engines[choice.release] for choice in found.engines), offered(found, catalog)
