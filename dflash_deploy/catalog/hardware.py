"""Hardware profiles: what a machine is recognised by, what it can do, and the settings that suit it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dflash_deploy.catalog.schema import Architecture, Entry, Evidenced, Settings

Capability = Annotated[str, Field(pattern=r"^\d+\.\d$", description="compute capability as nvidia-smi prints it")]


class Match(Entry):
    """Which machines a profile fits."""

    gpus: Annotated[int, Field(ge=0, description="how many GPUs in one machine; 0 is a machine without any")]
    compute_capability: Capability | None = None
    memory_gib: Annotated[
        tuple[float, float] | None,
        Field(description="least and most memory of one GPU, in GiB; a GPU that does not say its memory fits too"),
    ] = None
    names: Annotated[
        list[str], Field(description="parts of the GPU's name, for drivers that do not print a compute capability")
    ] = []


class Hardware(Entry):
    """What one machine of this kind has. Memory, bandwidth and arithmetic are those of one GPU."""

    architecture: Annotated[Architecture | None, Field(description="`null` where both are sold")] = None
    memory_gib: Annotated[float, Field(gt=0, description="memory of one GPU; of the machine where it is unified")]
    unified: Annotated[bool, Field(description="the GPU uses the system's memory")] = False
    bandwidth: Annotated[float, Field(gt=0, description="memory bandwidth in 1e9 bytes/s, from the data sheet")]
    tflops: Annotated[float, Field(gt=0, description="dense BF16 tensor arithmetic in 1e12 operations/s")]
    machines: Annotated[int, Field(ge=1, description="machines that serve one model together")] = 1
    driver: Annotated[str | None, Field(description="lowest NVIDIA driver that knows this hardware")] = None
    most_utilisation: Annotated[
        float, Field(gt=0, le=1, description="share of the memory above which this machine gets into trouble")
    ] = 0.95
    source: str


class FirstStart(Entry):
    """How long a first start takes on this machine, caches empty, weights and image there."""

    seconds: Annotated[float, Field(gt=0, description="from `up` to the first answer")]
    source: str


class EngineChoice(Entry):
    """An engine release that suits the profile, and the settings that hold for this engine alone."""

    release: Annotated[str, Field(description="name of an engine release")]
    settings: Settings = {}


class Profile(Entry):
    """One kind of machine."""

    name: str
    title: str
    match: Match
    hardware: Hardware
    pair: Annotated[str, Field(description="name of the model pair that it serves unless asked otherwise")]
    engines: Annotated[list[EngineChoice], Field(min_length=1, description="in order of preference")]
    evidence: Evidenced
    first_start: Annotated[FirstStart | None, Field(description="`null` where nobody has told")] = None
    settings: Annotated[Settings, Field(description="settings that hold for every engine")] = {}

    def settings_for(self, release: str) -> Settings:
        """The settings for one engine release, its own counting more than those for every engine."""
        own = next((choice.settings for choice in self.engines if choice.release == release), {})
        return {**self.settings, **own}

    @property
    def gpus(self) -> int:
        """GPUs of all its machines together."""
        return self.match.gpus * self.hardware.machines
