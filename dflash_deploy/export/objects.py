"""The objects of the folder's base, as documents for Kubernetes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from dflash_deploy import __version__
from dflash_deploy.export.cluster import Cluster, ExportSource
from dflash_deploy.export.group import group, group_environment, ranks
from dflash_deploy.export.pod import (
    CONTAINER,
    FURTHER_KEYS,
    PORT,
    SECRETS,
    STARTS,
    cache_claim,
    number_of,
    pod_spec,
    settings_name,
    shares_weights,
    weights_claim,
)
from dflash_deploy.export.requests import LOADER
from dflash_deploy.serve.gateway.keyring import KEYS_FILE

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

ROUTER = "router"
"""The component in front of several engines."""


def objects(source: ExportSource, cluster: Cluster) -> dict[str, dict[str, Any]]:
    """Each object, by the name of its file. The Secret is missing: a person creates it."""
    found = {
        "settings.yaml": _config_map(source, cluster),
        **(
            {"deployment.yaml": _deployment(source, cluster)}
            if source.nodes == 1
            else {"group.yaml": _group(source, cluster)}
        ),
        "service.yaml": _service(cluster),
        "disruption.yaml": _disruption(source, cluster),
        "network.yaml": _network(source, cluster),
    }
    if cluster.weights == "claim":
        found["weights.yaml"] = _weights_claim(source, cluster)
    if claim := cache_claim(source, cluster):
        found["cache.yaml"] = _claim(cluster, claim, CACHE_SIZE, "ReadWriteOnce")
    return found


def loader(source: ExportSource, cluster: Cluster) -> dict[str, Any]:
    """A pod that waits, with the claim of the weights writable: a person fills the claim through it."""
    spec = pod_spec(source, cluster)
    (engine,) = spec["containers"]
    container = {
        "name": "loader",
        "image": engine["image"],
        "imagePullPolicy": engine["imagePullPolicy"],
        "command": ["python3", "-c", "import time; time.sleep(86400)"],
        "resources": {"requests": dict(LOADER)},
        "securityContext": engine["securityContext"],
        "volumeMounts": [{"name": "weights", "mountPath": "/models"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata(cluster, f"{cluster.name}-loader", component="loader"),
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            **{name: spec[name] for name in ("enableServiceLinks", "automountServiceAccountToken", "nodeSelector")},
            "securityContext": spec["securityContext"],
            "containers": [container],
            "volumes": [{"name": "weights", "persistentVolumeClaim": {"claimName": weights_claim(source, cluster)}}],
        },
    }


def labels(cluster: Cluster, component: str) -> dict[str, str]:
    """The labels of the pods of one component, and of no others."""
    return {
        "app.kubernetes.io/name": "dflash-deploy",
        "app.kubernetes.io/instance": cluster.name,
        "app.kubernetes.io/component": component,
    }


def selector(cluster: Cluster) -> dict[str, str]:
    """The labels of the engine's pods, and of no others."""
    return labels(cluster, CONTAINER)


def clients() -> list[dict[str, Any]]:
    """Who reaches the endpoint: pods of the namespace, and of labelled ones."""
    return [{"podSelector": {}}, {"namespaceSelector": {"matchLabels": {CLIENT_LABEL: "true"}}}]


def engines_only(cluster: Cluster) -> dict[str, Any]:
    """The engines' pods, for a policy."""
    return {"podSelector": {"matchLabels": selector(cluster)}}


def settings_of(source: ExportSource, cluster: Cluster) -> dict[str, str]:
    """The engine's environment, without secrets. Behind a router, the file of further keys has the router's too."""
    further = {KEYS_FILE: f"{SECRETS}/{FURTHER_KEYS}"} if cluster.routed else {}
    own = group_environment(source.environment) if source.nodes > 1 else source.environment
    return {**own, **further}


def metadata(cluster: Cluster, name: str, component: str = CONTAINER) -> dict[str, Any]:
    """Name and labels of an object. The labels of a pod are those of its component."""
    return {"name": name, "labels": labels(cluster, component)}


def _config_map(source: ExportSource, cluster: Cluster) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(cluster, settings_name(cluster)),
        "data": settings_of(source, cluster),
    }


def _deployment(source: ExportSource, cluster: Cluster) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {**metadata(cluster, cluster.name), "annotations": origin_of(source)},
        "spec": {
            **number_of(cluster),
            "strategy": strategy_of(cluster),
            # a first start may take longer than the ten minutes of the default
            "progressDeadlineSeconds": 600 + STARTS * int(source.start_seconds),
            "revisionHistoryLimit": 3,
            "selector": {"matchLabels": selector(cluster)},
            "template": {"metadata": _of_pods(source, cluster), "spec": pod_spec(source, cluster)},
        },
    }


def strategy_of(cluster: Cluster) -> dict[str, Any]:
    """How an update replaces the engines."""
    if not cluster.routed:
        # only this waits for the end of the old pod, which has the GPUs and the claim of the cache
        return {"type": "Recreate"}
    # a pod beyond them finds no GPU
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}


def _group(source: ExportSource, cluster: Cluster) -> dict[str, Any]:
    about = {**metadata(cluster, cluster.name), "annotations": origin_of(source)}
    return group(source, cluster, about, _of_pods(source, cluster))


def _of_pods(source: ExportSource, cluster: Cluster) -> dict[str, Any]:
    # changed settings change the pods, so that Kubernetes replaces them
    settings = digest_of(settings_of(source, cluster))
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
    component = ROUTER if cluster.routed else CONTAINER
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(cluster, cluster.name, component),
        "spec": {
            "type": "ClusterIP",
            "selector": labels(cluster, component),
            "ports": [{"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def _disruption(source: ExportSource, cluster: Cluster) -> dict[str, Any]:
    # of several nodes, each pod that is evicted ends its group
    pods = ranks(cluster) if source.nodes > 1 else {"matchLabels": selector(cluster)}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(cluster, cluster.name),
        # a minimum of one would keep a node with the only replica from ever being drained
        "spec": {"maxUnavailable": 1, "selector": pods},
    }


def _network(source: ExportSource, cluster: Cluster) -> dict[str, Any]:
    """Clients reach the engine, or only the router does. The engine reaches others only for images and traces."""
    router = [{"podSelector": {"matchLabels": labels(cluster, ROUTER)}}]
    several = [ranks(cluster)] if source.nodes > 1 else []
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(cluster, cluster.name),
        "spec": {
            "podSelector": several[0] if several else {"matchLabels": selector(cluster)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [
                {"from": router if cluster.routed else clients(), "ports": [{"protocol": "TCP", "port": PORT}]},
                # they reach each other on every port
                *({"from": [{"podSelector": one}]} for one in several),
            ],
            # the leader's address is a name
            "egress": [*_egress(source), *([dict(DNS), {"to": [{"podSelector": several[0]}]}] if several else [])],
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


def _weights_claim(source: ExportSource, cluster: Cluster) -> dict[str, Any]:
    mode = "ReadWriteMany" if shares_weights(source, cluster) else "ReadWriteOnce"
    claim = _claim(cluster, weights_claim(source, cluster), f"{source.claim_gib}Gi", mode)
    claim["metadata"]["annotations"] = {f"dflash.dev/{role}": commit for role, commit in source.locked.items()}
    return claim


def _claim(cluster: Cluster, name: str, size: str, mode: str) -> dict[str, Any]:
    spec: dict[str, Any] = {"accessModes": [mode], "resources": {"requests": {"storage": size}}}
    if cluster.storage_class:
        spec["storageClassName"] = cluster.storage_class
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata(cluster, name), "spec": spec}


def digest_of(texts: Mapping[str, str]) -> str:
    """Sixteen hexadecimal digits that change with any of the texts."""
    return hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()[:16]
