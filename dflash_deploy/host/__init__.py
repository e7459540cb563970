"""Facts about this machine: GPUs, memory, container engine, installed vLLM. This package reads and never decides."""

from dflash_deploy.host.containers import ContainerEngine, find_container_engine
from dflash_deploy.host.facts import HostFacts, read_facts
from dflash_deploy.host.gpu import Gpu
from dflash_deploy.host.ports import listener_on

__all__ = ["ContainerEngine", "Gpu", "HostFacts", "find_container_engine", "listener_on", "read_facts"]
