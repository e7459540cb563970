"""Whether an engine can serve a target with its drafter on a machine, and why not."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from packaging.version import InvalidVersion, Version

from dflash_deploy.catalog.hardware import Profile
from dflash_deploy.catalog.models import Drafter, ModelPair
from dflash_deploy.catalog.releases import Backend, EngineRelease
from dflash_deploy.serve.settings import Settings

# Types of KV cache of 16 bits; an empty one leaves the choice to the engine.
KV_OF_16_BITS = frozenset({"", "auto", "float16", "bfloat16", "bf16", "f16"})

KV_FP8 = frozenset({"fp8", "fp8_e4m3"})  # names of one type: FP8 with four bits of exponent
_LONG = {"latent": "latent attention (MLA)"}  # traits of an attention in words, if their names are not
NO_GPU = "0.0"  # the compute capability of a machine without a GPU


@lru_cache(maxsize=256)
def capability(text: str) -> tuple[int, int]:
    """`12.1` as (12, 1), for comparison. (0, 0) for any other text."""
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)


def obstacles(profile: Profile, pair: ModelPair, engine: EngineRelease, *, gpus: int | None = None) -> tuple[str, ...]:
    """Why the engine cannot serve the pair on the profile, each reason in one sentence. Memory is not checked here.

    `gpus`: those of one copy of the engine, if they are fewer than the profile's.
    """
    return (
        *_engine_on_machine(profile, engine),
        *_target_in_engine(profile, pair, engine),
        *_drafter_in_engine(pair, engine),
        *_split(profile, pair, gpus or profile.gpus),
    )


def _engine_on_machine(profile: Profile, engine: EngineRelease) -> Iterator[str]:
    if engine.name not in {choice.release for choice in profile.engines}:
        yield f"the catalog has no settings of {engine.title} for {profile.title}"
    if engine.cpu != (profile.match.gpus == 0):
        yield f"{engine.title} runs only on {'processors' if engine.cpu else 'GPUs'}"
    architecture = profile.hardware.architecture
    if architecture is not None and architecture not in engine.base_images:
        yield f"{engine.title} has no image for {architecture}"
    here = profile.match.compute_capability
    if here is not None and engine.capabilities and here not in engine.capabilities:
        yield f"{engine.title} was not built for compute capability {here}"


def _target_in_engine(profile: Profile, pair: ModelPair, engine: EngineRelease) -> Iterator[str]:
    if engine.families and pair.family.name not in engine.families:
        yield f"{engine.title} was made for {', '.join(engine.families)}"
    quantization = pair.target.quantisation
    if quantization not in engine.loads:
        yield f"{engine.title} has no loader for {quantization}, the quantization of {pair.target.repo or pair.name}"
    else:
        here, least = profile.match.compute_capability or NO_GPU, engine.loads[quantization]
        if capability(here) < capability(least):
            yield f"{engine.title} loads {quantization} from compute capability {least} on; {profile.title} has {here}"
    if (
        pair.target.forced_fp8_kv
        and engine.kind.fp8_kv_from_checkpoint
        and not _reads_forced_cache(profile, pair, engine)
    ):
        yield f"{pair.target.repo} requires an FP8 cache, which {engine.title} does not read on {profile.title}"
    needed = pair.family.needs.get(engine.engine)
    if needed is not None and below(engine.version, needed):
        yield f"{pair.family.title} needs {engine.engine} {needed}; this is {engine.version}"


def _reads_forced_cache(profile: Profile, pair: ModelPair, engine: EngineRelease) -> bool:
    """Whether the planned backends of target and drafter read an FP8 cache (vllm-project/vllm#49293)."""
    of_target, chosen = planned_backend(profile, pair, engine), profile.settings_for(engine.name)
    named = chosen.get(Settings.dflash_attention_backend.name)
    of_drafter = backend_on(profile, engine, str(named.value)) if named is not None else None
    readers = ((of_target, False), (of_drafter, True))
    return all(reader is None or reads_fp8(reader, pair, drafting=drafting) for reader, drafting in readers)


def planned_backend(profile: Profile, pair: ModelPair, engine: EngineRelease) -> Backend | None:
    """The profile's backend for the target, else the first of the release that computes its attention.

    `None` if the profile leaves it to the engine, or names one that the catalog does not know there.
    """
    chosen = profile.settings_for(engine.name).get(Settings.attention_backend.name)
    own = backend_on(profile, engine, str(chosen.value)) if chosen is not None else None
    if own is None or not refused_traits(own, pair):
        return own
    return next((one for one in backends_on(profile, engine) if not refused_traits(one, pair)), own)


def backends_on(profile: Profile, engine: EngineRelease) -> list[Backend]:
    """The release's entries for the profile's GPU, one for each backend."""
    names = dict.fromkeys(known.name for known in engine.attention)
    return [found for name in names if (found := backend_on(profile, engine, name)) is not None]


def backend_on(profile: Profile, engine: EngineRelease, name: str) -> Backend | None:
    """The release's entry for an attention backend on the profile's GPU; `None` if it does not run there."""
    here = capability(profile.match.compute_capability or NO_GPU)
    for known in engine.attention:
        least, most = map(capability, known.capabilities)
        if known.name.lower() == name.lower() and least <= here <= most:
            return known
    return None


def refused_traits(reader: Backend, pair: ModelPair) -> list[str]:
    """What the target's attention needs and the backend cannot compute, or lacks and the backend requires."""
    needed = pair.shape.attention_needs
    refused = [str(trait) for trait in needed if trait in reader.refuses]
    if pair.target.forced_fp8_kv:
        refused += [f"{trait} with an FP8 cache" for trait in needed if trait in reader.fp8_kv_refuses]
    return refused + [f"the backend needs {_LONG.get(trait, trait)}" for trait in reader.needs if trait not in needed]


def reads_fp8(reader: Backend, pair: ModelPair, *, drafting: bool = False) -> bool:
    """Whether a backend reads an FP8 cache with this model's head dimension, and with the target's attention.

    `drafting`: as a drafter does, whose attention has no traits.
    """
    attention, widest = pair.shape.full_attention, reader.fp8_kv_most_head_dim
    heads = pair.drafter.head_dim if drafting else attention.head_dim if attention is not None else 0
    too_wide = widest is not None and heads > widest
    refused = not drafting and any(trait in reader.fp8_kv_refuses for trait in pair.shape.attention_needs)
    return reader.fp8_kv and not too_wide and not refused


def reads_kv(reader: Backend, pair: ModelPair, dtype: str, *, drafting: bool) -> bool:
    """Whether a backend reads a KV cache of this type, `drafting` as a drafter does. Each backend reads 16 bits."""
    if drafting and not reader.drafts:
        return False
    if dtype in KV_OF_16_BITS:
        return True
    if dtype in KV_FP8:
        return reads_fp8(reader, pair, drafting=drafting)
    return dtype in reader.other_kv or (dtype in reader.causal_kv and not drafting)


def readers_of(
    profile: Profile, pair: ModelPair, engine: EngineRelease, dtype: str, *, planned: bool = False
) -> tuple[str, str] | None:
    """The backends with which target and drafter read a KV cache of this type; `None` if there are none.

    The planned ones come first, and are the only ones if `planned`. Both are empty if the engine has only one way.
    """
    if not engine.attention:
        return "", ""
    own, chosen = planned_backend(profile, pair, engine), profile.settings_for(engine.name)
    named = chosen.get(Settings.dflash_attention_backend.name)
    of_drafter = backend_on(profile, engine, str(named.value)) if named is not None else own
    others = [] if planned else [one for one in backends_on(profile, engine) if not refused_traits(one, pair)]
    found = [
        next((one.name for one in (first, *others) if one and reads_kv(one, pair, dtype, drafting=drafting)), "")
        for first, drafting in ((own, False), (of_drafter, True))
    ]
    return (found[0], found[1]) if all(found) else None


def reads_quantized(drafter: Drafter, engine: EngineRelease) -> bool:
    """Whether an engine is known to read a drafter's quantized weights."""
    known = engine.kind.quantized_drafters or "quantized-drafters" in engine.abilities
    return known or drafter.quantisation in engine.kind.drafter_formats


def _drafter_in_engine(pair: ModelPair, engine: EngineRelease) -> Iterator[str]:
    drafter = pair.drafter
    if drafter.absent:
        return
    if drafter.architecture not in engine.drafters:
        yield f"{engine.title} does not know drafters with the architecture {drafter.architecture}"
    if drafter.quantised and not reads_quantized(drafter, engine):
        yield f"{engine.title} does not run drafters with quantized weights, such as {drafter.repo}"
    if engine.kind.windows_in_header:
        return
    ability = {"sliding": "sliding-drafters", "mixed": "mixed-drafters"}.get(drafter.layer_types or "")
    if ability is not None and ability not in engine.abilities:
        yield f"{engine.title} does not run drafters with {drafter.layer_types} attention windows"


def _split(profile: Profile, pair: ModelPair, shared: int) -> Iterator[str]:
    """Tensor parallelism gives each GPU whole heads; KV heads are repeated if there are fewer than GPUs."""
    gpus, attention, most = profile.gpus, pair.shape.full_attention, pair.target.most_gpus
    if most is not None and shared > most:
        yield (
            f"the weights of {pair.target.repo} can be divided among {most} GPUs at most, not among {shared}: "
            f"choose a --profile with {most}"
        )
    linear = pair.shape.linear_attention
    if shared and linear is not None and linear.key_heads % shared:
        yield f"{linear.key_heads} key heads of recurrent layers cannot be divided among {shared} GPUs"
    if gpus < 2 or attention is None:
        return
    if attention.heads % gpus:
        yield f"{attention.heads} attention heads cannot be divided among {gpus} GPUs"
    if attention.kv_heads % gpus and gpus % attention.kv_heads:
        yield f"{attention.kv_heads} KV heads cannot be divided among {gpus} GPUs"


@lru_cache(maxsize=256)
def below(version: str, least: str) -> bool:
    """Whether one version is below another. llama.cpp's build numbers (`b11434`) are versions, other text is not."""
    try:
        return Version(version.removeprefix("b")) < Version(least.removeprefix("b"))
    except InvalidVersion:
        return False
