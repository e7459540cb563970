"""Which profile fits a machine, and which runtime."""

from __future__ import annotations

from dflash_deploy.catalog import Catalog, EngineRelease, Profile
from dflash_deploy.errors import UnknownProfile
from dflash_deploy.host import HostFacts
from dflash_deploy.plan.result import RuntimeName


def fits(profile: Profile, facts: HostFacts) -> bool:
    """Whether the machine has exactly the GPUs that the profile is for."""
    capabilities = {gpu.compute_capability for gpu in facts.gpus}
    wanted = profile.match
    if len(facts.gpus) != wanted.gpus:
        return False
    return wanted.compute_capability is None or capabilities == {wanted.compute_capability}


def choose_profile(facts: HostFacts, catalog: Catalog) -> Profile:
    """The profile for this machine; raises UnknownProfile, naming the GPUs, where none fits."""
    for profile in catalog.profiles.values():
        if fits(profile, facts):
            return profile
    seen = ", ".join(f"{gpu.name} (compute capability {gpu.compute_capability})" for gpu in facts.gpus)
    known = ", ".join(sorted(catalog.profiles))
    raise UnknownProfile(
        f"no profile fits this machine: {seen}", hint=f"name the nearest one with --profile; there are {known}"
    )


def choose_runtime(facts: HostFacts, engine: EngineRelease) -> RuntimeName:
    """Compose where a container engine with Compose answers, else native where a fitting vLLM is installed.

    Where there is neither, Compose: the files can be made here and used elsewhere, and `up` says what is missing.
    """
    if facts.container_engine is not None and facts.container_engine.compose:
        return "compose"
    if facts.native_engine is not None and facts.native_engine.cpu == engine.cpu:
        return "native"
    return "compose"
