"""The objects of the folder's base for Kubernetes, and the router in front of several engines.

The router is SMG and the door in one pod. Its objects limit which pods it may reach, and what it may request of
Kubernetes. The folder `monitoring/` has what the Prometheus Operator reads engines and alerts from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from dflash_deploy import __version__
from dflash_deploy.door.caddyfile import Door, caddyfile
from dflash_deploy.door.site import Plain
from dflash_deploy.features.export import cluster as requests
from dflash_deploy.features.export.cluster import LOADER, Cluster, ExportSource, has_registry
from dflash_deploy.features.export.pods import (
    CONFINED,
    CONTAINER,
    FURTHER_KEYS,
    GRACE_HUNG,
    PORT,
    SECRETS,
    STARTS,
    cache_claim,
    grace,
    leave,
    pod_security,
    pod_spec,
    runs_on,
    settings_name,
    weights_claim,
)
from dflash_deploy.serve.drain import SETTLES
from dflash_deploy.serve.gateway.asgi import MIB
from dflash_deploy.serve.gateway.keys import KEYS_FILE
from dflash_deploy.serve.router.files import DIRECTORY, KEYS
from dflash_deploy.serve.router.pods import ACCOUNT, SELECTOR
from dflash_deploy.serve.settings import Settings

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

ROUTER_NAME = "router"
"""The component in front of several engines."""


def objects(source: ExportSource, cluster: Cluster) -> dict[str, dict[str, Any]]:
    """Each object, by the name of its file. The Secret is missing: a person creates it."""
    found = {
        "settings.yaml": _config_map(source, cluster),
        "deployment.yaml": _engine_deployment(source, cluster),
        "service.yaml": _service(cluster),
        "disruption.yaml": _disruption(cluster),
        "network.yaml": _network_policy(source, cluster),
    }
    if cluster.weights == "claim":
        found["weights.yaml"] = _weights_claim(source, cluster)
    if claim := cache_claim(cluster):
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
            "volumes": [{"name": "weights", "persistentVolumeClaim": {"claimName": weights_claim(cluster)}}],
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
    return {**source.environment, **further}


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


def _engine_deployment(source: ExportSource, cluster: Cluster) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {**metadata(cluster, cluster.name), "annotations": origin_of(source)},
        "spec": {
            "replicas": cluster.replicas,
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
    component = ROUTER_NAME if cluster.routed else CONTAINER
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


def _disruption(cluster: Cluster) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(cluster, cluster.name),
        # a minimum of one would keep a node with the only replica from ever being drained
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector(cluster)}},
    }


def _network_policy(source: ExportSource, cluster: Cluster) -> dict[str, Any]:
    """Clients reach the engine, or only the router does. The engine reaches others only for images and traces."""
    router = [{"podSelector": {"matchLabels": labels(cluster, ROUTER_NAME)}}]
    callers = router if cluster.routed else clients()
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(cluster, cluster.name),
        "spec": {
            **engines_only(cluster),
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": callers, "ports": [{"protocol": "TCP", "port": PORT}]}],
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


def _weights_claim(source: ExportSource, cluster: Cluster) -> dict[str, Any]:
    mode = "ReadWriteMany" if cluster.routed else "ReadWriteOnce"
    claim = _claim(cluster, weights_claim(cluster), f"{source.claim_gib}Gi", mode)
    claim["metadata"]["annotations"] = {f"dflash.dev/{role}": commit for role, commit in source.locked.items()}
    return claim


def _claim(cluster: Cluster, name: str, size: str, mode: str) -> dict[str, Any]:
    spec: dict[str, Any] = {"accessModes": [mode], "resources": {"requests": {"storage": size}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata(cluster, name), "spec": spec}


def digest_of(texts: Mapping[str, str]) -> str:
    """Sixteen hexadecimal digits that change with any of the texts."""
    return hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()[:16]


ROUTER_PORT = 8001
"""The port of SMG, on the pod's own loopback address: it answers some routes without a key."""

FILES, DOOR_FILES = "/run/dflash/router", "/run/dflash/door"
"""Where the container of the router has its files, and that of the door its own."""

API_PORTS = (HTTPS_PORT, 6443, 8443, 16443)
"""Ports of Kubernetes: that of its Service, and those behind it, of kubeadm and k3s, minikube, and MicroK8s."""

TOKEN_SECONDS = 3607
"""How long a token is valid. Kubernetes renews it before."""


def router_name(cluster: Cluster) -> str:
    """The name of the router's objects, and of the Secret with its two keys."""
    return f"{cluster.name}-router"


def engines_name(cluster: Cluster) -> str:
    """The Service of all engines, for the routes that pass SMG by."""
    return f"{cluster.name}-engines"


def router_objects(source: ExportSource, cluster: Cluster) -> dict[str, dict[str, Any]]:
    """Each object, by the name of its file."""
    files = _files(source, cluster)
    return {
        "router.yaml": _deployment(source, cluster, digest_of(files["data"])),
        "router-files.yaml": files,
        "router-account.yaml": {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": _named(cluster),
            "automountServiceAccountToken": False,
        },
        "router-role.yaml": {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": _named(cluster),
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}],
        },
        "router-binding.yaml": _binding(cluster),
        "router-network.yaml": _network(cluster),
        "engines-service.yaml": _engines(cluster),
    }


def _named(cluster: Cluster) -> dict[str, Any]:
    return metadata(cluster, router_name(cluster), ROUTER_NAME)


def _binding(cluster: Cluster) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": _named(cluster),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": router_name(cluster)},
        # without a namespace, which kustomize sets
        "subjects": [{"kind": "ServiceAccount", "name": router_name(cluster)}],
    }


def _engines(cluster: Cluster) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(cluster, engines_name(cluster)),
        "spec": {
            "type": "ClusterIP",
            "selector": selector(cluster),
            "ports": [{"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def _network(cluster: Cluster) -> dict[str, Any]:
    engines = {"to": [engines_only(cluster)], "ports": [{"protocol": "TCP", "port": PORT}]}
    kubernetes = {"ports": [{"protocol": "TCP", "port": port} for port in API_PORTS]}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _named(cluster),
        "spec": {
            "podSelector": {"matchLabels": labels(cluster, ROUTER_NAME)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": clients(), "ports": [{"protocol": "TCP", "port": PORT}]}],
            "egress": [DNS, engines, kubernetes],
        },
    }


def _files(source: ExportSource, cluster: Cluster) -> dict[str, Any]:
    """The door's Caddyfile, which has no key."""
    settings = source.plan.settings
    door = Door(
        Plain("0.0.0.0", PORT),  # noqa: S104 - in the pod
        (f"{engines_name(cluster)}:{PORT}",),
        "/tmp/caddy",  # noqa: S108 - the container's own
        settings.max_body_mib * MIB,
        origins=settings.allowed_origins,
        router=f"127.0.0.1:{ROUTER_PORT}",
        ends=max(1, settings.drain_seconds),
    )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _named(cluster),
        "data": {"Caddyfile": caddyfile(door)},
    }


def _deployment(source: ExportSource, cluster: Cluster, digest: str) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _named(cluster),
        "spec": {
            # each would know only the conversations that it routed itself
            "replicas": 1,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "revisionHistoryLimit": 3,
            "selector": {"matchLabels": labels(cluster, ROUTER_NAME)},
            "template": {
                "metadata": {"labels": labels(cluster, ROUTER_NAME), "annotations": {"dflash.dev/settings": digest}},
                "spec": _pod(source, cluster),
            },
        },
    }


def _pod(source: ExportSource, cluster: Cluster) -> dict[str, Any]:
    return {
        "serviceAccountName": router_name(cluster),
        # the published door gets no token
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace(source),
        "securityContext": pod_security(source),
        "nodeSelector": runs_on(source),
        "containers": [_router(source, cluster), _door(cluster)],
        "volumes": [
            {"name": "keys", "secret": {"secretName": router_name(cluster), "defaultMode": 0o440}},
            {"name": "caddy", "configMap": {"name": router_name(cluster)}},
            {"name": "account", "projected": {"defaultMode": 0o440, "sources": _account()}},
            {"name": "router", "emptyDir": {}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }


def _account() -> list[dict[str, Any]]:
    """The files that a pod has of its account, as Kubernetes itself would mount them."""
    namespace = {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}
    return [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_SECONDS}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [namespace]}},
    ]


def _container(cluster: Cluster, name: str, asked: requests.Requests) -> dict[str, Any]:
    return {
        "name": name,
        "image": cluster.router,
        "imagePullPolicy": "IfNotPresent" if has_registry(cluster.router) else "Never",
        "resources": {"requests": dict(asked)},
        "securityContext": CONFINED,
    }


def _router(source: ExportSource, cluster: Cluster) -> dict[str, Any]:
    settings = source.plan.settings
    own = {
        Settings.dflash_bind.name: "127.0.0.1",
        Settings.dflash_port.name: str(ROUTER_PORT),
        Settings.max_num_seqs.name: str(settings.max_num_seqs or ""),
        Settings.max_body_mib.name: str(settings.max_body_mib),
        Settings.hang_seconds.name: str(settings.hang_seconds),
        Settings.served_model_name.name: source.environment.get(Settings.served_model_name.name, ""),
        DIRECTORY: FILES,
        SELECTOR: ",".join(f"{name}={value}" for name, value in selector(cluster).items()),
        # libraries look up the user name; a numeric user has no name in the image
        "USER": "dflash",
    }
    alive = {"exec": {"command": ["python3", "-m", "dflash_deploy.serve.router.health"]}, "timeoutSeconds": 10}
    return {
        **_container(cluster, ROUTER_NAME, requests.ROUTER),
        "lifecycle": leave("dflash_deploy.serve.router.drain", source),
        "env": [{"name": name, "value": value} for name, value in own.items() if value],
        "readinessProbe": {**alive, "periodSeconds": 10, "failureThreshold": 3},
        "livenessProbe": {
            **alive,
            "terminationGracePeriodSeconds": GRACE_HUNG,
            "periodSeconds": 30,
            "failureThreshold": 3,
            "initialDelaySeconds": 60,
        },
        "volumeMounts": [
            {"name": "router", "mountPath": FILES},
            {"name": "account", "mountPath": str(ACCOUNT), "readOnly": True},
            # one entry in a directory that the router writes to
            {"name": "keys", "mountPath": f"{FILES}/{KEYS}", "subPath": KEYS, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the container's own
        ],
    }


def _door(cluster: Cluster) -> dict[str, Any]:
    directories = ("XDG_DATA_HOME", "XDG_CONFIG_HOME")
    listens = {"tcpSocket": {"port": "http"}, "timeoutSeconds": 5, "failureThreshold": 3}
    return {
        **_container(cluster, "door", requests.DOOR),
        # from SIGTERM on, Caddy takes no requests, and ends once its streams have ended
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(SETTLES)]}}},
        "command": ["caddy", "run", "--config", f"{DOOR_FILES}/Caddyfile", "--adapter", "caddyfile"],
        # Caddy looks for directories of its user there
        "env": [{"name": name, "value": "/tmp"} for name in directories],  # noqa: S108 - the container's own
        "ports": [{"name": "http", "containerPort": PORT}],
        # without an engine that is ready, the door answers 503
        "readinessProbe": {**listens, "periodSeconds": 5},
        "livenessProbe": {**listens, "terminationGracePeriodSeconds": GRACE_HUNG, "periodSeconds": 30},
        "volumeMounts": [
            {"name": "caddy", "mountPath": DOOR_FILES, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the container's own
        ],
    }


METRICS = "monitoring"

METRICS_LABEL = "dflash.dev/metrics"
"""The label of a namespace whose pods may read the metrics of each engine."""

KEY = "key"
"""The entry of the Secret with the key that opens /metrics."""

KEY_NAME = "prometheus"
"""The name of that key, as of `monitor export`."""

INTERVAL = "15s"
"""Time between two readings: the windows of the rules are for it."""

JOB = "dflash"
"""The job that the recording rules name."""


def metrics_secret(cluster: Cluster) -> str:
    """The Secret with the key of Prometheus."""
    return f"{cluster.name}-metrics"


def monitoring_objects(source: ExportSource, cluster: Cluster) -> dict[str, dict[str, Any]]:
    """Each object, by the name of its file."""
    named = metadata(cluster, f"{cluster.name}-metrics", METRICS)
    reads = [{"namespaceSelector": {"matchLabels": {METRICS_LABEL: "true"}}}]
    return {
        "servicemonitor.yaml": {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "ServiceMonitor",
            "metadata": named,
            "spec": {
                # the Service of the engines: a router has no metrics of an engine
                "selector": {"matchLabels": labels(cluster, CONTAINER)},
                "endpoints": [_endpoint(cluster)],
            },
        },
        "rules.yaml": {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": named,
            "spec": {"groups": list(source.rule_groups)},
        },
        "network.yaml": {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": named,
            "spec": {
                **engines_only(cluster),
                "policyTypes": ["Ingress"],
                "ingress": [{"from": reads, "ports": [{"protocol": "TCP", "port": PORT}]}],
            },
        },
    }


def _endpoint(cluster: Cluster) -> dict[str, Any]:
    return {
        "port": "http",
        "path": "/metrics",
        "interval": INTERVAL,
        "authorization": {"type": "Bearer", "credentials": {"name": metrics_secret(cluster), "key": KEY}},
        # the labels of all recorded series
        "relabelings": [
            {"targetLabel": "job", "replacement": JOB},
            {"targetLabel": "deployment", "replacement": cluster.name},
            {"sourceLabels": ["__meta_kubernetes_pod_name"], "targetLabel": "replica"},
        ],
    }
