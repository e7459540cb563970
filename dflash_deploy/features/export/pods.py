"""The engine's pod: one container, as Compose runs it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import ceil
from typing import Any

from dflash_deploy.features.export.cluster import Cluster, ExportSource, engine_requests, has_registry
from dflash_deploy.serve.drain import SETTLES
from dflash_deploy.serve.gateway.health import HUNG_AFTER
from dflash_deploy.serve.settings import Settings

CONTAINER = "engine"
PORT = 8000
KEYS_IN_SECRET = "dotenv"  # noqa: S105 - the name of an entry
FURTHER_KEYS = "keys.json"
"""The entry with the digests of further keys, if a router is in front: its own is among them."""

SECRETS = "/run/secrets"
"""Where the engine has both."""
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


def leave(module: str, source: ExportSource) -> dict[str, Any]:
    """What a container does before SIGTERM: a module of the image waits for the requests in flight, then ends.

    Engines break off answers at SIGTERM.
    """
    return {"preStop": {"exec": {"command": ["python3", "-m", module, str(source.plan.settings.drain_seconds)]}}}


def grace(source: ExportSource) -> int:
    """Seconds from the end's beginning to SIGKILL. A pod without requests in flight ends long before."""
    return SETTLES + source.plan.settings.drain_seconds + ENDS


def secret_name(cluster: Cluster) -> str:
    """The Secret with the API keys, which the person creates."""
    return f"{cluster.name}-keys"


def settings_name(cluster: Cluster) -> str:
    """The ConfigMap with the settings."""
    return f"{cluster.name}-settings"


def weights_claim(cluster: Cluster) -> str:
    """The claim with the weights. A shared one has another name: Kubernetes lets no one change the mode of a claim."""
    return f"{cluster.name}-weights-shared" if cluster.routed else f"{cluster.name}-weights"


def cache_claim(cluster: Cluster) -> str:
    """The claim with compiled kernels; empty if several pods would share it: each has a health check's memory in it."""
    return "" if cluster.routed else f"{cluster.name}-cache"


def pod_security(source: ExportSource) -> dict[str, Any]:
    """The user of a pod, who is not root and owns its claims."""
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
    image = source.image(cluster)
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": image,
        # a name without a registry is an image of this project that a person loads onto the nodes
        "imagePullPolicy": "IfNotPresent" if has_registry(image) else "Never",
        "envFrom": [{"configMapRef": {"name": settings_name(cluster)}}],
        "ports": [{"name": "http", "containerPort": PORT}],
        **_probes(source),
        "lifecycle": leave("dflash_deploy.serve.drain", source),
        "resources": {"requests": engine_requests(source)},
        "securityContext": CONFINED,
        "volumeMounts": _mounts(source, cluster),
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


def _mounts(source: ExportSource, cluster: Cluster) -> list[dict[str, Any]]:
    claim = cluster.weights == "claim"
    target: dict[str, Any] = {"name": "weights" if claim else "target", "mountPath": "/models/target", "readOnly": True}
    drafter = {"name": "weights" if claim else "drafter", "mountPath": "/models/drafter", "readOnly": True}
    if claim:
        target, drafter = {**target, "subPath": "target"}, {**drafter, "subPath": "drafter"}
    return [
        target,
        *([drafter] if source.drafter else []),
        {"name": "keys", "mountPath": SECRETS, "readOnly": True},
        {"name": CACHE, "mountPath": "/cache"},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the container's own
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the container's own
    ]


def _volumes(source: ExportSource, cluster: Cluster) -> list[dict[str, Any]]:
    claim = cache_claim(cluster)
    return [
        *_weights(source, cluster),
        # 0440: the group of the pod reads it, and the engine runs as no other
        {"name": "keys", "secret": {"secretName": secret_name(cluster), "defaultMode": 0o440}},
        {"name": CACHE, **({"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}})},
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": quantity(source.plan.values)}},
    ]


def _weights(source: ExportSource, cluster: Cluster) -> list[dict[str, Any]]:
    if cluster.weights == "claim":
        return [{"name": "weights", "persistentVolumeClaim": {"claimName": weights_claim(cluster)}}]
    places = {"target": source.target, "drafter": source.drafter}
    return [{"name": name, "hostPath": {"path": path, "type": "Directory"}} for name, path in places.items() if path]


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
