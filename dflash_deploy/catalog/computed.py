"""Computed profiles: the nearest profile's settings with another GPU's own memory, bandwidth and arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product

from dflash_deploy.catalog.hardware import EngineChoice, GpuModel, Match, Profile, is_named
from dflash_deploy.catalog.read import CatalogSetting, Evidenced, Settings
from dflash_deploy.catalog.releases import EngineRelease
from dflash_deploy.serve.settings import Settings as Environment

COUNTS = (8, 4, 2, 1)  # GPUs of a computed profile: heads of attention can be divided by these

# What a driver reports of the memory that a GPU is sold with. RTX 5060 Ti with 8 and 16 GB have one name.
DRIVER_SHARE = (0.85, 1.06)


BRIDGED = "-nvlink"  # end of the name of a profile whose GPUs have NVLink bridges, as two RTX 3090 can have


def linked(profile: Profile, name: str) -> Profile:
    """The profile with NVLink between its GPUs."""
    hardware = profile.hardware.model_copy(update={"link": "nvlink"})
    changed = {"name": name, "title": f"{profile.title}, with NVLink", "hardware": hardware, "speed": ""}
    return profile.model_copy(update=changed)


def name_of(model: GpuModel, count: int) -> str:
    """The name of the profile for this number of GPUs."""
    return model.name if count == 1 else f"{model.name}-x{count}"


def computed(
    name: str, models: Iterable[GpuModel], profiles: Mapping[str, Profile], engines: Mapping[str, EngineRelease]
) -> Profile | None:
    """The computed profile of that name; `None` if no GPU has it, or if no profile is of the GPU's architecture."""
    for model, count in product(models, COUNTS):
        if name == name_of(model, count):
            capability = model.compute_capability
            base = (
                profiles[model.like]
                if model.like
                else nearest_profile(profiles, capability, model.memory_gib, names=model.names, count=count)
            )
            related = base is not None and (model.like or is_related(base, capability))
            return _starting_from(base, model, count, engines) if base is not None and related else None
    return None


def is_related(profile: Profile, capability: str) -> bool:
    """Whether a profile's GPU is of the same architecture: the major number of the compute capability."""
    return _major(profile.match.compute_capability) == _major(capability)


def nearest_profile(
    profiles: Mapping[str, Profile], capability: str, memory_gib: float, *, names: Sequence[str] = (), count: int = 1
) -> Profile | None:
    """The profile of one machine whose settings suit GPUs best: by architecture, then name, number and memory."""

    def distance(profile: Profile) -> tuple[float, ...]:
        match = profile.match
        return (
            abs(_major(match.compute_capability) - _major(capability)),
            match.compute_capability != capability,
            not is_named(match.names, *names),
            abs(match.gpus - count),
            abs(profile.hardware.memory_gib - memory_gib),
        )

    known = (one for one in profiles.values() if one.hardware.machines == 1 and one.match.compute_capability)
    return min(known, key=distance, default=None)


def _major(capability: str | None) -> int:
    major = (capability or "").partition(".")[0]
    return int(major) if major.isdecimal() else 0


def _starting_from(base: Profile, model: GpuModel, count: int, engines: Mapping[str, EngineRelease]) -> Profile:
    """The profile with another GPU. What others measured on the nearest profile's GPU is left out."""
    least, most = DRIVER_SHARE
    memory = None if base.hardware.unified else (least * model.memory_gib, most * model.memory_gib)
    figures = {"memory_gib": model.memory_gib, "bandwidth": model.bandwidth, "tflops": model.tflops}
    others = {"architecture": model.architecture or base.hardware.architecture, "source": model.source}
    choices = [
        EngineChoice(release=one.release, settings=_as_on(base, one.settings))
        for one in base.engines
        # llama.cpp does not divide a model over GPUs as the speed model assumes
        if count == 1 or engines[one.release].kind.knows(Environment.tensor_parallel_size)
    ]
    return base.model_copy(
        update={
            "name": name_of(model, count),
            "title": f"{'one' if count == 1 else count} {model.title}",
            "match": Match(
                gpus=count, compute_capability=model.compute_capability, memory_gib=memory, names=model.names
            ),
            "hardware": base.hardware.model_copy(update={**figures, **others}),
            "engines": choices or base.engines,
            "evidence": Evidenced(
                state="computed",
                by=f"settings of profile {base.name}, with this GPU's own figures; not run by this project",
            ),
            "speed": "",
            "first_start": None,
            "recipes": [],
            "settings": _as_on(base, base.settings) | _split(count),
        }
    )


def _as_on(base: Profile, settings: Settings) -> Settings:
    """The settings, whose reasons say that they are those of another profile."""
    return {
        name: one.model_copy(update={"reason": f"as on {base.name}: {one.reason}"})
        for name, one in settings.items()
        if name != Environment.tensor_parallel_size.name
    }


def _split(count: int) -> Settings:
    """The setting that divides the target over several GPUs."""
    if count == 1:
        return {}
    chosen = CatalogSetting(value=count, reason="the target is split over all GPUs")
    return {Environment.tensor_parallel_size.name: chosen}
