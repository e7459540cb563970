"""Hardware profiles: how a machine is recognised, its hardware, and the settings that suit it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from dflash_deploy.catalog.schema import Architecture, Entry, Evidenced, Settings

BRANDS = ("NVIDIA ", "GeForce ", "Quadro ", "Tesla ")
"""Words before a GPU's name, which depend on the driver."""

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


class Profile(Entry):
    """One kind of machine."""

    name: Annotated[str, Field(description="as `--profile` takes it")]
    title: Annotated[str, Field(description="the machine in words")]
    match: Match
    hardware: Hardware
    pair: Annotated[str, Field(description="name of the model pair that it serves by default")]
    engines: Annotated[list[EngineChoice], Field(min_length=1, description="in order of preference")]
    evidence: Evidenced
    speed: Annotated[str, Field(description="tokens/s at concurrency 1 and source, if speeds.yaml has no row")] = ""
    speed_of: Annotated[str, Field(description="the pair that `speed` was measured with, which must be `pair`")] = ""
    first_start: Annotated[FirstStart | None, Field(description="`null` if unknown")] = None
    settings: Annotated[Settings, Field(description="settings for every engine")] = {}

    def settings_for(self, release: str) -> Settings:
        """The settings for one engine release. Its own settings override those for every engine."""
        own = next((choice.settings for choice in self.engines if choice.release == release), {})
        return {**self.settings, **own}

    @property
    def gpus(self) -> int:
        """The number of GPUs of all its machines together."""
        return self.match.gpus * self.hardware.machines
