"""Facts about this machine: GPUs, memory, disk, Docker, installed vLLM. It reads and never decides."""

from dflash_deploy.host.containers import ContainerEngine, find_container_engine
from dflash_deploy.host.disk import DiskRoom, bytes_under, disk_room
from dflash_deploy.host.facts import HostFacts, read_facts
from dflash_deploy.host.gpu import Gpu
from dflash_deploy.host.gpu_processes import GpuProcess, gpu_processes
from dflash_deploy.host.kernel_log import kernel_lines
from dflash_deploy.host.ports import is_address_here, listener_on

__all__ = [
    "ContainerEngine",
    "DiskRoom",
    "Gpu",
    "GpuProcess",
    "HostFacts",
    "bytes_under",
    "disk_room",
    "find_container_engine",
    "gpu_processes",
    "is_address_here",
    "kernel_lines",
    "listener_on",
    "read_facts",
]
