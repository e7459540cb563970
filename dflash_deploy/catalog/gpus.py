"""GPUs that no profile describes: their names, memory, bandwidth and arithmetic, each with its source."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dflash_deploy.catalog.hardware import Capability, Profile
from dflash_deploy.catalog.schema import Architecture, Entry


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
