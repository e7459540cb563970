"""Facts about this machine: GPUs, memory, disk, Docker, installed vLLM. It reads and never decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_deploy.lazy import lazily

if TYPE_CHECKING:
    from dflash_deploy.host.containers import ContainerEngine, container_engine, elsewhere, find_container_engine
    from dflash_deploy.host.disk import DiskRoom, bytes_under, disk_room
    from dflash_deploy.host.facts import HostFacts, read_facts
    from dflash_deploy.host.gpu import Gpu
    from dflash_deploy.host.gpu_processes import GpuProcess
    from dflash_deploy.host.kernel_log import kernel_lines
    from dflash_deploy.host.ports import foreign_bind, is_address_here, listener_on, may_listen_on
    from dflash_deploy.host.topology import Thread, threads_here
else:
    __getattr__ = lazily(
        __name__,
        {
            ".containers": ("ContainerEngine", "container_engine", "elsewhere", "find_container_engine"),
            ".disk": ("DiskRoom", "bytes_under", "disk_room"),
            ".facts": ("HostFacts", "read_facts"),
            ".gpu": ("Gpu",),
            ".gpu_processes": ("GpuProcess",),
            ".kernel_log": ("kernel_lines",),
            ".ports": ("foreign_bind", "is_address_here", "listener_on", "may_listen_on"),
            ".topology": ("Thread", "threads_here"),
        },
    )

__all__ = [
    "ContainerEngine",
    "DiskRoom",
    "Gpu",
    "GpuProcess",
    "HostFacts",
    "Thread",
    "bytes_under",
    "container_engine",
    "disk_room",
    "elsewhere",
    "find_container_engine",
    "foreign_bind",
    "is_address_here",
    "kernel_lines",
    "listener_on",
    "may_listen_on",
    "read_facts",
    "threads_here",
]
