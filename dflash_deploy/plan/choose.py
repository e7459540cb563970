"""The choice of profile, pair, engine and runtime for a machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, product

from dflash_deploy.catalog.computed import COUNTS, is_related, name_of, nearest_profile
from dflash_deploy.catalog.hardware import Match, Profile, is_named
from dflash_deploy.catalog.load import GPUS, Catalog
from dflash_deploy.catalog.models import ModelPair
from dflash_deploy.catalog.releases import EngineRelease
from dflash_deploy.errors import NotPossible, UnknownProfile
from dflash_deploy.host.gpu import Gpu, driver_advice
from dflash_deploy.host.machine import HostFacts
from dflash_deploy.plan.compatible import capability, obstacles
from dflash_deploy.plan.memory import GIB
from dflash_deploy.plan.result import RuntimeName
from dflash_deploy.plan.sizes import fits_at_all
from dflash_deploy.serve.engines.llamacpp import Llamacpp


def gpu_fits(match: Match, gpu: Gpu) -> bool:
    """Whether a GPU is of the profile's kind, by what the driver reports. A match without names takes any name."""
    if gpu.mig or (match.names and not is_named(match.names, gpu.name)):
        return False
    if match.memory_gib is not None and gpu.memory is not None:
        least, most = match.memory_gib
        if not least <= gpu.memory / GIB <= most:
            return False
    if gpu.compute_capability and match.compute_capability is not None:
        return gpu.compute_capability == match.compute_capability
    return bool(match.names)


def fitting_gpus(profile: Profile, facts: HostFacts) -> tuple[Gpu, ...]:
    """The GPUs of this machine that the profile uses; empty if there are too few of its kind."""
    matching = tuple(gpu for gpu in facts.gpus if gpu_fits(profile.match, gpu))
    return matching[: profile.match.gpus] if len(matching) >= profile.match.gpus else ()


def used_gpus(profile: Profile, facts: HostFacts) -> tuple[Gpu, ...]:
    """The GPUs of this machine that a plan for the profile would use, in `plan` and in `doctor`.

    Without enough GPUs of its kind, those that run the same kernels, such as the laptop variant of a card: memory is
    theirs. Empty on another kind of machine, whose memory is the profile's.
    """
    alike = [gpu for gpu in facts.gpus if gpu.compute_capability == profile.match.compute_capability and not gpu.mig]
    return fitting_gpus(profile, facts) or tuple(alike[: profile.match.gpus])


def fits(profile: Profile, facts: HostFacts) -> bool:
    """Whether the machine has what the profile needs."""
    if profile.match.gpus == 0:
        return not facts.gpus
    return bool(fitting_gpus(profile, facts))


def choose_profile(facts: HostFacts, catalog: Catalog) -> Profile:
    """The profile that uses most of this machine, computed if none describes its GPUs. Raises UnknownProfile."""
    if facts.gpu_problem and not facts.gpus:
        raise UnknownProfile(
            f"the GPU cannot be read: {facts.gpu_problem}",
            hint=f"{driver_advice(facts.gpu_problem)}; or name the hardware with --profile: "
            f"{', '.join(sorted(catalog.profiles))}",
        )
    described = (one for one in catalog.profiles.values() if one.hardware.machines == 1 and fits(one, facts))
    candidates = [*described, *_computed(facts, catalog)]
    if candidates:
        return max(candidates, key=_size)
    raise _none_fits(facts, catalog)


def _size(profile: Profile) -> tuple[float, float]:
    """The memory of a profile's GPUs together, then their bandwidth: of two cards of 24 GB the faster one is used."""
    hardware, gpus = profile.hardware, profile.match.gpus
    return gpus * hardware.memory_gib, gpus * hardware.bandwidth


def _computed(facts: HostFacts, catalog: Catalog) -> Iterator[Profile]:
    """For each kind of GPU that the catalog has figures of, the profile for as many of them as share a model."""
    for model in catalog.gpu_models if facts.gpus else ():
        seen = sum(is_named(model.names, gpu.name) for gpu in facts.gpus)
        named = (catalog.find_profile(name_of(model, count)) for count in COUNTS if count <= seen)
        yield from islice((one for one in named if one is not None and fits(one, facts)), 1)


def _none_fits(facts: HostFacts, catalog: Catalog) -> UnknownProfile:
    """Why no profile fits, and the nearest one."""
    seen = ", ".join(map(_described, facts.gpus)) or "no GPU"
    largest = max(facts.gpus, key=lambda gpu: gpu.memory or 0, default=Gpu("", "", None, ""))
    near = nearest_profile(catalog.profiles, largest.compute_capability, (largest.memory or 0) / GIB)
    instead = ""
    if any(gpu.mig for gpu in facts.gpus):
        why, instead = "MIG splits a GPU into slices", "switch MIG off (`nvidia-smi -mig 0`), or "
    elif near is None or not is_related(near, largest.compute_capability):
        why = _unsupported(largest, catalog)
    else:
        why, instead = "the catalog has no bandwidth of it", f"add it to {GPUS} of a custom catalog, or "
    nearest = f" (nearest: {near.name}, {near.title})" if near else ""
    hint = f"{instead}name a profile with --profile{nearest}; `dflash-deploy profiles list` prints all"
    return UnknownProfile(f"no profile fits this machine: {seen}; {why}", hint=hint)


def _unsupported(gpu: Gpu, catalog: Catalog) -> str:
    """Why no engine of the catalog runs DFlash on a GPU: draft models are BF16, which old GPUs do not compute."""
    here = gpu.compute_capability or "unknown"
    least = min(
        (one.loads["bf16"] for one in catalog.engines.values() if "bf16" in one.loads and not one.cpu), key=capability
    )
    if capability(here) < capability(least):
        return f"vLLM and SGLang load draft models, which are BF16, from compute capability {least} on"
    return f"no engine is known to run DFlash on compute capability {here}"


def _described(gpu: Gpu) -> str:
    capability = f"compute capability {gpu.compute_capability or 'unknown'}"
    memory = f", {gpu.memory / GIB:.0f} GiB" if gpu.memory else ""
    return f"{gpu.name} ({capability}{memory}{', split by MIG' if gpu.mig else ''})"


def engines_of(profile: Profile, catalog: Catalog, asked: str | None) -> tuple[EngineRelease, ...]:
    """The engine releases to choose from, the preferred one first.

    `asked` is the name of a release or of an engine (`vllm`). Raises UnknownEngine if it is neither.
    """
    releases = tuple(catalog.engines[choice.release] for choice in profile.engines)
    if asked is None:
        return releases
    # first: the fork's release for GPUs has the engine's name
    family = tuple(release for release in releases if release.engine == asked)
    if family:
        return family
    if asked in catalog.engines:
        return (catalog.engines[asked],)
    elsewhere = tuple(release for release in catalog.engines.values() if release.engine == asked)
    return elsewhere or (catalog.engine(asked),)


def engines_here(
    facts: HostFacts, engines: Sequence[EngineRelease], runtime: RuntimeName | None
) -> tuple[EngineRelease, ...]:
    """The releases that this machine can run as it is, with `runtime` if that was asked for.

    With Docker and Compose that is every release, without them an installed engine.
    """
    return tuple(engine for engine in engines if _runs_here(facts, engine, runtime))


def _runs_here(facts: HostFacts, engine: EngineRelease, runtime: RuntimeName | None) -> bool:
    return any(runtime in {None, possible} for possible in possible_runtimes(facts, engine))


def usual_engine_unfit_here(
    profile: Profile, facts: HostFacts, catalog: Catalog, engine: EngineRelease, runtime: RuntimeName, memory: int
) -> EngineRelease | None:
    """The engine that the profile would have on any other machine, if this one can run only the chosen one."""
    engines = engines_of(profile, catalog, None)
    usual = choose_engine(profile, choose_pair(profile, catalog, engines, memory), engines)
    if usual == engine or not _runs_here(facts, engine, runtime) or _runs_here(facts, usual, runtime):
        return None
    return usual


def choose_engine(
    profile: Profile, pair: ModelPair, engines: Sequence[EngineRelease], *, gpus: int | None = None
) -> EngineRelease:
    """The first engine that serves the pair on this profile, on `gpus` GPUs if they are fewer than the profile's.

    Engines that are not known to have loaded its quantization come last. Raises NotPossible, with all obstacles.
    """
    serving = [engine for engine in engines if not obstacles(profile, pair, engine, gpus=gpus)]
    if serving:
        return min(serving, key=lambda engine: pair.target.quantisation in engine.unproven)
    reasons = dict.fromkeys(reason for engine in engines for reason in obstacles(profile, pair, engine, gpus=gpus))
    raise NotPossible(
        f"{pair.name} cannot be served on {profile.name}: {'; '.join(reasons)}",
        hint="`dflash-deploy models list` shows which models run on which hardware, and why",
    )


def pairs_in_order(profile: Profile, catalog: Catalog) -> Iterator[ModelPair]:
    """The profile's own pair, then other quantizations of the same model, then all others."""
    own = catalog.pairs[profile.pair]
    yield own
    family = [pair for pair in catalog.pairs.values() if pair.family.name == own.family.name and pair != own]
    yield from family
    yield from (pair for pair in catalog.pairs.values() if pair.family.name != own.family.name)


def choose_pair(profile: Profile, catalog: Catalog, engines: Sequence[EngineRelease], memory: int) -> ModelPair:
    """The first pair that one of the engines serves on this profile, and that fits into one GPU's `memory` in bytes.

    If none fits, the first that an engine serves: the rules say what is missing. Raises NotPossible if there is none.
    """
    first = None
    for pair, engine in product(pairs_in_order(profile, catalog), engines):
        if obstacles(profile, pair, engine):
            continue
        if fits_at_all(profile, pair, engine, memory=memory):
            return pair
        first = first or pair
    if first is not None:
        return first
    names = ", ".join(engine.title for engine in engines)
    raise NotPossible(
        f"{names} serves no model of the catalog on {profile.name}",
        hint=f"remove --engine; {profile.name} has {', '.join(choice.release for choice in profile.engines)}",
    )


def choose_runtime(facts: HostFacts, engine: EngineRelease) -> RuntimeName:
    """The first possible runtime.

    With none, Compose: the files can be made here and used elsewhere, and `up` says what is missing.
    """
    return next(possible_runtimes(facts, engine), "native" if is_light_here(facts, engine) else "compose")


def is_light_here(facts: HostFacts, engine: EngineRelease) -> bool:
    """Whether a machine has neither GPU nor Docker, and the engine is small: llama.cpp has 226 MB, vLLM 4.5 GB."""
    return not facts.gpus and not has_compose(facts) and engine.cpu and engine.native == Llamacpp.name


def has_compose(facts: HostFacts) -> bool:
    """Whether Docker with Compose responds."""
    return facts.container_engine is not None and bool(facts.container_engine.compose)


def possible_runtimes(facts: HostFacts, engine: EngineRelease) -> Iterator[RuntimeName]:
    """Compose if Docker with Compose responds; native if an engine of the planned kind is installed."""
    if has_compose(facts):
        yield "compose"
    installed = facts.native_engines.get(engine.engine)
    if installed is not None and engine.native is not None and installed.cpu == engine.cpu:
        yield "native"
