"""The processor and memory that pods ask for. A pod without requests is the first to be evicted from a full node."""

from __future__ import annotations

from collections.abc import Mapping

from dflash_deploy.export.cluster import ExportSource
from dflash_deploy.plan.memory import GIB

ENGINE_CORES = 2
"""Cores beside one for each GPU: vLLM's guide for GPUs asks for at least 2 + N."""

HOST_GIB = 4
"""GiB in the node's own memory for the server, and as many for each process of a GPU: an estimate."""

Requests = Mapping[str, str]

ROUTER: Requests = {"cpu": "250m", "memory": "512Mi"}
DOOR: Requests = {"cpu": "100m", "memory": "128Mi"}
PULL: Requests = {"cpu": "250m", "memory": "512Mi"}
LOADER: Requests = {"cpu": "100m", "memory": "128Mi"}


def engine_requests(source: ExportSource) -> dict[str, str]:
    """What an engine needs at least. Without a memory of its own, the GPU's weights are in that of the node."""
    plan = source.plan
    if plan.engine.cpu:
        return {"cpu": "1", "memory": _gib(_planned(source) + (plan.settings.vllm_cpu_kvcache_space or 0) * GIB)}
    host = HOST_GIB * GIB * (1 + source.gpus)
    planned = _planned(source) if plan.profile.hardware.unified else 0
    return {"cpu": str(ENGINE_CORES + source.gpus), "memory": _gib(host + planned)}


def _planned(source: ExportSource) -> int:
    """Bytes of weights and of what the engine computes with. The cache takes what remains, so it is not among them."""
    memory = source.plan.memory
    return memory.target + memory.drafter + memory.reserve if memory else GIB


def _gib(size: float) -> str:
    return f"{max(1, int(-(-size // GIB)))}Gi"
