"""Hardware profiles, and data of the GPUs that no profile describes.

A profile says how a machine is recognised, which hardware it has, and which settings suit it. A GPU without a profile
has its names, memory, bandwidth and arithmetic, each with its source.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import Annotated, Literal

from pydantic import Field

from dflash_deploy.catalog.read import Architecture, Entry, Evidenced, Settings

BRANDS = ("NVIDIA ", "GeForce ", "Quadro ", "Tesla ")  # words before a GPU's name, which depend on the driver
Capability = Annotated[str, Field(pattern=r"^\d+\.\d$", description="compute capability as nvidia-smi prints it")]


class Match(Entry):
    """The machines that a profile matches."""

    gpus: Annotated[int, Field(ge=0, description="GPUs of one machine; 0: a machine without GPUs")]
    compute_capability: Annotated[
        Capability | None, Field(description="as nvidia-smi prints it, such as 8.6; `null` without a GPU")
    ] = None
    memory_gib: Annotated[
        tuple[float, float] | None,
        Field(description="minimum and maximum memory of one GPU in GiB; a GPU that reports no memory matches too"),
    ] = None
    names: Annotated[
        list[str],
        Field(description="names of the GPU as nvidia-smi prints them; with or without `NVIDIA`, `GeForce` or `Tesla`"),
    ] = []


def is_named(names: Iterable[str], *printed: str) -> bool:
    """Whether one of the printed names is among these. `H100 PCIe` is not an `H100`: names are compared as a whole."""
    return not {_plain(name) for name in names}.isdisjoint(map(_plain, printed))


def _plain(name: str) -> str:
    # a MIG slice has the card's name before its own
    name = name.partition(" MIG ")[0]
    for brand in BRANDS:
        name = name.removeprefix(brand)
    return name.casefold()


class Hardware(Entry):
    """The hardware of one machine. Memory, bandwidth and arithmetic are those of one GPU."""

    architecture: Annotated[Architecture | None, Field(description="`null` if both exist")] = None
    memory_gib: Annotated[float, Field(gt=0, description="memory of one GPU; if unified, of the machine")]
    unified: Annotated[bool, Field(description="the GPU uses the system's memory")] = False
    system_gib: Annotated[
        float, Field(ge=0, description="GiB of unified memory that a plan leaves to the system and other programs")
    ] = 24
    bandwidth: Annotated[float, Field(gt=0, description="memory bandwidth in 1e9 bytes/s, from the data sheet")]
    tflops: Annotated[float, Field(gt=0, description="dense BF16 tensor arithmetic in 1e12 operations/s")]
    link: Annotated[
        Literal["nvlink", "pcie", "network"], Field(description="the link between the GPUs of one model")
    ] = "pcie"
    machines: Annotated[int, Field(ge=1, description="machines that serve one model together")] = 1
    driver: Annotated[str | None, Field(description="lowest NVIDIA driver that supports this hardware")] = None
    most_utilisation: Annotated[
        float, Field(gt=0, le=1, description="highest share of the memory that this machine can give to the engine")
    ] = 0.95
    source: Annotated[str, Field(description="source of these figures")]


class FirstStart(Entry):
    """The duration of the first start on this machine: weights and image are present, caches are empty."""

    seconds: Annotated[float, Field(gt=0, description="from `up` to the first answer")]
    source: Annotated[str, Field(description="who measured it")]


class EngineChoice(Entry):
    """An engine release that suits the profile, and the settings for this engine only."""

    release: Annotated[str, Field(description="name of an engine release")]
    settings: Annotated[Settings, Field(description="settings for this engine release")] = {}


class Recipe(Entry):
    """Models and an engine release that go together on one machine, and the settings that differ from the profile's.

    Its published speeds are the rows of speeds.yaml with its models and its engine.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$", description="as `--recipe` takes it")]
    title: Annotated[str, Field(description="the recipe in a few words")]
    date: Annotated[date, Field(description="its newest source is from this day or before")]
    pair: Annotated[str, Field(description="name of the model pair")]
    engine: Annotated[str, Field(description="name of an engine release of the profile")]
    why: Annotated[str, Field(min_length=10, description="why to choose it, in one sentence")]
    evidence: Evidenced
    settings: Annotated[Settings, Field(description="settings that differ from the profile's")] = {}


class Profile(Entry):
    """One kind of machine."""

    name: Annotated[str, Field(description="as `--profile` takes it")]
    title: Annotated[str, Field(description="the machine in words")]
    match: Match
    hardware: Hardware
    engines: Annotated[list[EngineChoice], Field(min_length=1, description="in order of preference")]
    evidence: Evidenced
    speed: Annotated[str, Field(description="tokens/s at concurrency 1 and source, if speeds.yaml has no row")] = ""
    speed_of: Annotated[str, Field(description="the pair that `speed` was measured with")] = ""
    first_start: Annotated[FirstStart | None, Field(description="`null` if unknown")] = None
    settings: Annotated[Settings, Field(description="settings for every engine")] = {}
    recipes: Annotated[list[Recipe], Field(description="what to choose from, the first ones are shown by `init`")] = []

    def settings_for(self, release: str) -> Settings:
        """The settings for one engine release. Its own settings override those for every engine."""
        own = next((choice.settings for choice in self.engines if choice.release == release), {})
        return {**self.settings, **own}

    def following(self, recipe: Recipe) -> Profile:
        """The profile with the recipe's settings in place of its own, for the recipe's engine release."""
        engines = [
            one.model_copy(update={"settings": {**one.settings, **recipe.settings}})
            if one.release == recipe.engine
            else one
            for one in self.engines
        ]
        return self.model_copy(update={"engines": engines})

    @property
    def gpus(self) -> int:
        """The number of GPUs of all its machines together."""
        return self.match.gpus * self.hardware.machines


class GpuModel(Entry):
    """One model of GPU. A profile is computed from it for machines that no profile describes."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]+$", description="name of the computed profile")]
    title: Annotated[str, Field(description="the GPU in words")]
    names: Annotated[
        list[str], Field(min_length=1, description="as nvidia-smi prints it, without `NVIDIA`, `GeForce` or `Tesla`")
    ]
    compute_capability: Capability
    memory_gib: Annotated[float, Field(gt=0, description="memory in GiB; if unified, of the machine")]
    bandwidth: Annotated[float, Field(gt=0, description="memory bandwidth in 1e9 bytes/s")]
    tflops: Annotated[float, Field(gt=0, description="dense BF16 tensor arithmetic in 1e12 operations/s")]
    architecture: Annotated[
        Architecture | None, Field(description="of the processor; `null`: as the nearest profile's")
    ] = None
    like: Annotated[
        str | None, Field(description="profile to start from; `null`: the nearest by compute capability")
    ] = None
    source: Annotated[str, Field(min_length=10, description="source of these figures")]


class GpuModels(Entry):
    """The file of GPU models."""

    gpus: list[GpuModel]


def of_profile(profile: Profile) -> GpuModel | None:
    """The GPU of a profile for one card, so that several of them can be planned; `None` for any other profile."""
    match, hardware = profile.match, profile.hardware
    if match.gpus != 1 or hardware.machines > 1 or hardware.unified or not match.names or not match.compute_capability:
        return None
    return GpuModel(
        name=profile.name,
        title=profile.title.removeprefix("one "),
        names=match.names,
        compute_capability=match.compute_capability,
        memory_gib=hardware.memory_gib,
        bandwidth=hardware.bandwidth,
        tflops=hardware.tflops,
        architecture=hardware.architecture,
        source=hardware.source,
    )
