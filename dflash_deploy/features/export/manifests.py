"""The objects of the folder for Kubernetes: one engine in a pod, as Compose runs it, and its Service.

The GPUs of the pod are the GPUs of tensor parallelism, times the factors in EXTRA_ARGS. It requests processor and
memory: a pod without requests is the first to be evicted from a full node.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from dflash_deploy import __version__
from dflash_deploy.errors import BadInput, NotPossible
from dflash_deploy.plan.memory import GIB
from dflash_deploy.plan.result import Plan
from dflash_deploy.serve.drain import SETTLES
from dflash_deploy.serve.engines.base import extra_flags
from dflash_deploy.serve.gateway.health import HUNG_AFTER
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


LONGEST_NAME = 40
"""Characters of the name. A pod adds up to 17, and a label has at most 63."""

USUAL_START = 1200.0
"""Expected seconds of a first start, at least: the start period of the Compose file.

A profile's own figure was measured with its usual models on a local disk; others are larger, or on a slower one.
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

    `name` is that of all objects. `image` replaces the image of the deployment.
    """

    name: str = "dflash"
    image: str = ""
    runtime_class: str = ""

    def __post_init__(self) -> None:
        """Raises BadInput for what Kubernetes would refuse."""
        if not _NAME.fullmatch(self.name) or len(self.name) > LONGEST_NAME:
            raise BadInput(
                f"`{self.name[:80]}` is not a valid name for objects in Kubernetes",
                hint=f"expected lower-case letters, digits and -, at most {LONGEST_NAME} characters, such as dflash",
            )
        check_form("image", self.image, IMAGE, "registry.example.com/dflash-vllm:1@sha256:DIGEST")
        check_form("runtime class", self.runtime_class, _OBJECT, "nvidia")


@dataclass(frozen=True)
class ExportSource:
    """What the export reads: the plan, and facts of the deployment that the plan does not have.

    `environment` is that of the engine's container in Compose, without secrets. `env_file` is the file of this machine
    that the Secret is made of. `target` and `drafter` are absolute directories on this machine; `drafter` is empty
    without one. `locked` is the repository and commit of each role.
    """

    plan: Plan
    environment: Mapping[str, str]
    env_file: str
    target: str
    drafter: str
    user: int
    group: int
    locked: Mapping[str, str]

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


CONTAINER = "engine"
PORT = 8000
KEYS_IN_SECRET = "dotenv"  # noqa: S105 - the name of an entry
SECRETS = "/run/secrets"
"""Where the engine has its keys."""
CACHE = "cache"

STARTS = 3
"""How many times the expected start a first start may take."""

STARTUP_PERIOD, LIVENESS_PERIOD, READINESS_PERIOD = 10, 30, 10

ENDS = 10
"""Seconds from SIGTERM to SIGKILL, in which processes end."""

GRACE_HUNG = 15
"""The same for a container that a probe ends: it has no answers to wait for."""

CONFINED: Mapping[str, Any] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
"""The security context of each container, as in Compose."""

_SIZE = re.compile(r"(?P<number>[\d.]+)\s*(?P<unit>[kmg]?)b?", re.IGNORECASE)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3}


def grace(source: ExportSource) -> int:
    """Seconds from the end's beginning to SIGKILL. A pod without requests in flight ends long before."""
    return SETTLES + source.plan.settings.drain_seconds + ENDS


def secret_name(cluster: Cluster) -> str:
    """The Secret with the API keys, which the person creates."""
    return f"{cluster.name}-keys"


def settings_name(cluster: Cluster) -> str:
    """The ConfigMap with the settings."""
    return f"{cluster.name}-settings"


def cache_claim(cluster: Cluster) -> str:
    """The claim with compiled kernels."""
    return f"{cluster.name}-cache"


def pod_security(source: ExportSource) -> dict[str, Any]:
    """The user of a pod, who is not root and owns its claim."""
    return {
        "runAsNonRoot": True,
        "runAsUser": source.user,
        "runAsGroup": source.group,
        "fsGroup": source.group,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def runs_on(source: ExportSource) -> dict[str, str]:
    """The labels of the nodes on which the images run."""
    found = {"kubernetes.io/os": "linux"}
    return {**found, "kubernetes.io/arch": source.architecture} if source.architecture else found


def pod_spec(source: ExportSource, cluster: Cluster) -> dict[str, Any]:
    """The specification of a pod with one engine."""
    spec: dict[str, Any] = {
        # a Service named `vllm` sets VLLM_PORT to a URL, with which vLLM does not start
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": grace(source),
        "securityContext": pod_security(source),
        "nodeSelector": runs_on(source),
        "containers": [_engine_container(source, cluster)],
        "volumes": _volumes(source, cluster),
    }
    if cluster.runtime_class and source.gpus:
        spec["runtimeClassName"] = cluster.runtime_class
    return spec


def _engine_container(source: ExportSource, cluster: Cluster) -> dict[str, Any]:
    image, drain = source.image(cluster), str(source.plan.settings.drain_seconds)
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": image,
        # a name without a registry is an image of this project that a person loads onto the nodes
        "imagePullPolicy": "IfNotPresent" if has_registry(image) else "Never",
        "envFrom": [{"configMapRef": {"name": settings_name(cluster)}}],
        "ports": [{"name": "http", "containerPort": PORT}],
        **_probes(source),
        # engines break off answers at SIGTERM: this waits for the requests in flight before it
        "lifecycle": {"preStop": {"exec": {"command": ["python3", "-m", "dflash_deploy.serve.drain", drain]}}},
        "resources": {"requests": engine_requests(source)},
        "securityContext": CONFINED,
        "volumeMounts": _mounts(source),
    }
    if source.gpus:
        container["resources"]["limits"] = {"nvidia.com/gpu": source.gpus}
    return container


def _probes(source: ExportSource) -> dict[str, Any]:
    listens = {"httpGet": {"path": "/health", "port": "http"}, "timeoutSeconds": 5}
    return {
        "startupProbe": {
            **listens,
            "terminationGracePeriodSeconds": GRACE_HUNG,
            "periodSeconds": STARTUP_PERIOD,
            "failureThreshold": ceil(STARTS * source.start_seconds / STARTUP_PERIOD),
        },
        "readinessProbe": {**listens, "periodSeconds": READINESS_PERIOD, "failureThreshold": 3},
        # /health of vLLM answers while its core hangs: this check asks for a token
        "livenessProbe": {
            "exec": {"command": ["python3", "-m", "dflash_deploy.serve.gateway.health"]},
            "terminationGracePeriodSeconds": GRACE_HUNG,
            "periodSeconds": LIVENESS_PERIOD,
            "timeoutSeconds": 10,
            "failureThreshold": HUNG_AFTER,
        },
    }


def _mounts(source: ExportSource) -> list[dict[str, Any]]:
    return [
        *({"name": role, "mountPath": f"/models/{role}", "readOnly": True} for role in _weights(source)),
        {"name": "keys", "mountPath": SECRETS, "readOnly": True},
        {"name": CACHE, "mountPath": "/cache"},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the container's own
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the container's own
    ]


def _volumes(source: ExportSource, cluster: Cluster) -> list[dict[str, Any]]:
    return [
        *({"name": name, "hostPath": {"path": path, "type": "Directory"}} for name, path in _weights(source).items()),
        # 0440: the group of the pod reads it, and the engine runs as no other
        {"name": "keys", "secret": {"secretName": secret_name(cluster), "defaultMode": 0o440}},
        {"name": CACHE, "persistentVolumeClaim": {"claimName": cache_claim(cluster)}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": quantity(source.plan.values)}},
    ]


def _weights(source: ExportSource) -> dict[str, str]:
    """The directories with weights, by role."""
    places = {"target": source.target, "drafter": source.drafter}
    return {role: path for role, path in places.items() if path}


def quantity(values: Mapping[str, str]) -> str:
    """The size of /dev/shm as Kubernetes writes it: `16g` is 16Gi."""
    found = _SIZE.fullmatch((values.get(Settings.dflash_shm_size.name) or "1g").strip())
    if found is None:
        return "1Gi"
    size = int(float(found["number"]) * 1024 ** _POWER[found["unit"].lower()])
    for unit, power in (("Gi", 3), ("Mi", 2), ("Ki", 1)):
        if size % 1024**power == 0:
            return f"{size // 1024**power}{unit}"
    return str(size)


CACHE_SIZE = "20Gi"
"""Room for compiled kernels and graphs."""

CLIENT_LABEL = "dflash.dev/client"
"""The label of a namespace whose pods may reach the endpoint."""

DNS_PORT, HTTP_PORT, HTTPS_PORT = 53, 80, 443

DNS: Mapping[str, Any] = {"ports": [{"protocol": protocol, "port": DNS_PORT} for protocol in ("UDP", "TCP")]}
"""What a pod reaches to look up names."""

WEB: Sequence[Mapping[str, Any]] = (
    {"namespaceSelector": {}},
    {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}},
    {"ipBlock": {"cidr": "::/0", "except": ["fe80::/10"]}},
)
"""Where images may be: anywhere but at link-local addresses, at which clouds give out the keys of a node."""


def objects(source: ExportSource, cluster: Cluster) -> dict[str, dict[str, Any]]:
    """Each object, by the name of its file. The Secret is missing: a person creates it."""
    return {
        "settings.yaml": _config_map(source, cluster),
        "deployment.yaml": _engine_deployment(source, cluster),
        "service.yaml": _service(cluster),
        "network.yaml": _network_policy(source, cluster),
        "cache.yaml": _cache(cluster),
    }


def selector(cluster: Cluster) -> dict[str, str]:
    """The labels of the engine's pods, and of no others."""
    return {
        "app.kubernetes.io/name": "dflash-deploy",
        "app.kubernetes.io/instance": cluster.name,
        "app.kubernetes.io/component": CONTAINER,
    }


def metadata(cluster: Cluster, name: str) -> dict[str, Any]:
    """Name and labels of an object."""
    return {"name": name, "labels": selector(cluster)}


def _config_map(source: ExportSource, cluster: Cluster) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(cluster, settings_name(cluster)),
        "data": dict(source.environment),
    }


def _engine_deployment(source: ExportSource, cluster: Cluster) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {**metadata(cluster, cluster.name), "annotations": origin_of(source)},
        "spec": {
            "replicas": 1,
            # only this waits for the end of the old pod, which has the GPUs and the claim of the cache
            "strategy": {"type": "Recreate"},
            # a first start may take longer than the ten minutes of the default
            "progressDeadlineSeconds": 600 + STARTS * int(source.start_seconds),
            "revisionHistoryLimit": 3,
            "selector": {"matchLabels": selector(cluster)},
            "template": {"metadata": _of_pods(source, cluster), "spec": pod_spec(source, cluster)},
        },
    }


def _of_pods(source: ExportSource, cluster: Cluster) -> dict[str, Any]:
    # changed settings change the pods, so that Kubernetes replaces them
    settings = digest_of(source.environment)
    return {"labels": selector(cluster), "annotations": {"dflash.dev/settings": settings}}


def origin_of(source: ExportSource) -> dict[str, str]:
    """What the manifests were made from."""
    plan = source.plan
    return {
        "dflash.dev/version": __version__,
        "dflash.dev/profile": plan.profile.name,
        "dflash.dev/pair": plan.pair.name,
        "dflash.dev/engine": plan.engine.name,
        **{f"dflash.dev/{role}": commit for role, commit in source.locked.items()},
    }


def _service(cluster: Cluster) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(cluster, cluster.name),
        "spec": {
            "type": "ClusterIP",
            "selector": selector(cluster),
            "ports": [{"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def _network_policy(source: ExportSource, cluster: Cluster) -> dict[str, Any]:
    """Pods of the namespace and of labelled ones reach the engine. It reaches others only for images and traces."""
    clients = [{"podSelector": {}}, {"namespaceSelector": {"matchLabels": {CLIENT_LABEL: "true"}}}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(cluster, cluster.name),
        "spec": {
            "podSelector": {"matchLabels": selector(cluster)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": clients, "ports": [{"protocol": "TCP", "port": PORT}]}],
            "egress": _egress(source),
        },
    }


def _egress(source: ExportSource) -> list[dict[str, Any]]:
    settings = source.plan.settings
    web = (HTTP_PORT, HTTPS_PORT) if settings.allowed_media_domains else ()
    found: list[dict[str, Any]] = []
    if web:
        found.append({"to": [dict(one) for one in WEB], "ports": [_tcp(port) for port in web]})
    if settings.otlp_traces_endpoint is not None and settings.otlp_traces_endpoint.port not in web:
        found.append({"ports": [_tcp(settings.otlp_traces_endpoint.port)]})
    return [dict(DNS), *found] if found else []


def _tcp(port: int) -> dict[str, Any]:
    return {"protocol": "TCP", "port": port}


def _cache(cluster: Cluster) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(cluster, cache_claim(cluster)),
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": CACHE_SIZE}}},
    }


def digest_of(texts: Mapping[str, str]) -> str:
    """Sixteen hexadecimal digits that change with any of the texts."""
    return hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()[:16]
