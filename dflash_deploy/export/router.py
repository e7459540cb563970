"""The router before several engines: SMG and the door in one pod, and what it may reach and ask."""

from __future__ import annotations

from typing import Any

from dflash_deploy.door import Door, Plain, caddyfile
from dflash_deploy.export import requests
from dflash_deploy.export.cluster import Cluster, ExportSource, has_registry
from dflash_deploy.export.objects import (
    DNS,
    HTTPS_PORT,
    ROUTER,
    clients,
    digest_of,
    engines_only,
    labels,
    metadata,
    selector,
)
from dflash_deploy.export.pod import CONFINED, GRACE_HUNG, PORT, grace, leave, pod_security, runs_on
from dflash_deploy.serve.drain import SETTLES
from dflash_deploy.serve.gateway.asgi import MIB
from dflash_deploy.serve.router.files import DIRECTORY, KEYS
from dflash_deploy.serve.router.pods import ACCOUNT, SELECTOR
from dflash_deploy.serve.settings import Settings

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
    return metadata(cluster, router_name(cluster), ROUTER)


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
            "podSelector": {"matchLabels": labels(cluster, ROUTER)},
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
        preflights=settings.allows_origins,
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
            "selector": {"matchLabels": labels(cluster, ROUTER)},
            "template": {
                "metadata": {"labels": labels(cluster, ROUTER), "annotations": {"dflash.dev/settings": digest}},
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
        **_container(cluster, ROUTER, requests.ROUTER),
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
