"""The input of an export for a cluster: the user's choices, the deployment, and the resources of a pod.

The GPUs of one pod are the GPUs of tensor parallelism, times the factors in EXTRA_ARGS. Pods request processor and
memory: a pod without requests is the first to be evicted from a full node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dflash_deploy import __version__
from dflash_deploy.assets import build_digest
from dflash_deploy.errors import BadInput, NotPossible
from dflash_deploy.plan.memory import GIB
from dflash_deploy.plan.result import Plan
from dflash_deploy.serve.engines.base import extra_flags
from dflash_deploy.serve.settings import Settings

PIPELINE = ("--pipeline-parallel-size", "-pp", "--pp-size")
DATA = ("--data-parallel-size", "-dp", "--dp-size")
CONTEXT = ("--prefill-context-parallel-size", "-pcp")
"""Flags of vLLM and SGLang whose number multiplies the GPUs, with their short names."""

SHARED = "--enable-dp-attention"
"""With this flag of SGLang, the GPUs of the tensor parallelism are also those of the data parallelism."""

MOST = 1024
"""The largest number that is taken for one of GPUs."""


def gpus_of_pod(settings: Settings) -> int:
    """GPUs of the pod of an engine. Raises NotPossible for a flag without a number."""
    data = 1 if SHARED in extra_flags(settings) else _number(settings, DATA)
    return (settings.tensor_parallel_size or 1) * data * _number(settings, PIPELINE) * _number(settings, CONTEXT)


def _number(settings: Settings, names: tuple[str, ...]) -> int:
    """The number behind a flag in EXTRA_ARGS, as the engine reads it: the last one counts. 1 without the flag."""
    found = 1
    words = settings.extra_args
    for index, flag in enumerate(extra_flags(settings)):
        if flag in names:
            _, equals, value = words[index].partition("=")
            found = _counted(flag, value if equals else "".join(words[index + 1 : index + 2]))
    return found


def _counted(flag: str, value: str) -> int:
    if value.isascii() and value.isdigit() and len(value) < 5 and 1 <= int(value) <= MOST:
        return int(value)
    raise NotPossible(
        f"`{value[:80]}` is not a valid number for {flag} (1-{MOST}) in {Settings.extra_args}",
        hint="a pod asks for a number of GPUs: write it as one, such as 2",
    )


Weights = Literal["host-path", "claim"]
"""Where pods find the weights: in the directories of each node, or in a PersistentVolumeClaim."""

LONGEST_NAME = 40
"""Characters of the name. A pod adds up to 17, and a label has at most 63."""

MOST_REPLICAS = 64

USUAL_START = 1200.0
"""Expected seconds of a first start, at least: the start period of the Compose file.

A profile's own figure was measured with its usual models on a local disk; a claim may be slower, and models larger.
"""

_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_OBJECT = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
IMAGE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._:/-]*(@sha256:[0-9a-f]{64})?")


def check_form(what: str, value: str, pattern: re.Pattern[str], example: str) -> None:
    """Raise BadInput if a choice does not match. An empty one leaves it to the deployment or the cluster."""
    if value and not pattern.fullmatch(value):
        raise BadInput(f"`{value[:80]}` is not a valid {what}", hint=f"such as {example}")


@dataclass(frozen=True)
class Cluster:
    """The choices for one cluster. Empty texts leave a choice to the cluster, or to the deployment.

    `name` is that of all objects. `image` replaces the image of the deployment. `router_image`
    is that of the router and the door before several replicas.
    """

    name: str = "dflash"
    replicas: int = 1
    weights: Weights = "host-path"
    image: str = ""
    runtime_class: str = ""
    router_image: str = ""

    def __post_init__(self) -> None:
        """Raises BadInput for what Kubernetes would refuse."""
        if not _NAME.fullmatch(self.name) or len(self.name) > LONGEST_NAME:
            raise BadInput(
                f"`{self.name[:80]}` is not a valid name for objects in Kubernetes",
                hint=f"expected lower-case letters, digits and -, at most {LONGEST_NAME} characters, such as dflash",
            )
        if not 1 <= self.replicas <= MOST_REPLICAS:
            raise BadInput(
                f"`{self.replicas}` is not a valid number of replicas (1-{MOST_REPLICAS})",
                hint="each replica needs GPUs of its own",
            )
        check_form("image", self.image, IMAGE, "registry.example.com/dflash-vllm:1@sha256:DIGEST")
        check_form("image", self.router_image, IMAGE, "registry.example.com/dflash-router:1@sha256:DIGEST")
        check_form("runtime class", self.runtime_class, _OBJECT, "nvidia")

    @property
    def router(self) -> str:
        """The image of the router and the door."""
        return self.router_image or f"dflash-deploy/router:{__version__}-{build_digest('router')}"

    @property
    def routed(self) -> bool:
        """Whether a router is in front of the engines."""
        return self.replicas > 1


@dataclass(frozen=True)
class ExportSource:
    """What the export reads: the plan, and facts of the deployment that the plan does not have.

    `environment` is that of the engine's container in Compose, without secrets. `env_file`, `keys_file` and
    `router_keys_file` are files of this machine that Secrets are made of. `target` and `drafter` are absolute
    directories on this machine; `drafter` is empty without one. `locked` is the repository and commit of each role,
    `weights_bytes` the size of all locked files. `rule_groups` are the rules of Prometheus: recorded series, alerts,
    limits.
    """

    plan: Plan
    environment: Mapping[str, str]
    env_file: str
    keys_file: str
    router_keys_file: str
    target: str
    drafter: str
    user: int
    group: int
    locked: Mapping[str, str]
    weights_bytes: int
    rule_groups: Sequence[Mapping[str, Any]] = ()

    def image(self, cluster: Cluster) -> str:
        """The image of the engine."""
        return cluster.image or self.plan.settings.dflash_image

    @property
    def gpus(self) -> int:
        """GPUs of one pod: those that its settings ask for; for engines without such settings all of the machine.

        Raises NotPossible if the settings do not give a number.
        """
        if self.plan.engine.cpu:
            return 0
        if self.plan.engine.kind.knows(Settings.tensor_parallel_size):
            return gpus_of_pod(self.plan.settings)
        return self.plan.profile.match.gpus

    @property
    def start_seconds(self) -> float:
        """Expected seconds of the first start, with empty caches."""
        known = self.plan.profile.first_start
        return max(known.seconds if known else 0.0, USUAL_START)

    @property
    def architecture(self) -> str:
        """The processor as Kubernetes names it; empty if the profile does not say."""
        return {"aarch64": "arm64", "x86_64": "amd64"}.get(self.plan.profile.hardware.architecture or "", "")

    @property
    def claim_gib(self) -> int:
        """GiB of the claim for the weights: the locked files and a tenth."""
        return max(1, -(-self.weights_bytes * 11 // (10 * 2**30)))


def is_pinned(image: str) -> bool:
    """Whether an image is named by its digest, so that every node runs the same."""
    return "@sha256:" in image


def has_registry(image: str) -> bool:
    """Whether an image names its registry. Nodes would look for any other one on Docker Hub."""
    first, slash, _ = image.partition("/")
    return bool(slash) and ("." in first or ":" in first or first == "localhost")


ENGINE_CORES = 2
"""Cores beside one for each GPU: vLLM's guide for GPUs asks for at least 2 + N."""

HOST_GIB = 4
"""GiB in the node's own memory for the server, and as many for each process of a GPU: an estimate."""

Requests = Mapping[str, str]

ROUTER: Requests = {"cpu": "250m", "memory": "512Mi"}
DOOR: Requests = {"cpu": "100m", "memory": "128Mi"}
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
