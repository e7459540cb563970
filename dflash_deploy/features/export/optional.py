"""Optional folders of an export for Kubernetes, for what only some clusters have.

`ingress/` publishes the endpoint under a host, with the list of paths that the door has. `monitoring/` has the objects
from which the Prometheus Operator reads the engines and the alerts.
"""

from __future__ import annotations

from typing import Any

from dflash_deploy.door.caddyfile import PATHS
from dflash_deploy.features.export.cluster import Cluster, ExportSource
from dflash_deploy.features.export.objects import engines_only, labels, metadata
from dflash_deploy.features.export.pods import CONTAINER, PORT

INGRESS = "ingress"

SILENCE = 3600
"""Seconds for which an engine may be silent, as for the door: a long prompt on a slow machine."""


def tls_secret(cluster: Cluster) -> str:
    """The Secret with the certificate of the host."""
    return f"{cluster.name}-tls"


def ingress_objects(source: ExportSource, cluster: Cluster) -> dict[str, dict[str, Any]]:
    """Each object, by the name of its file."""
    spec: dict[str, Any] = {
        "tls": [{"hosts": [cluster.host], "secretName": tls_secret(cluster)}],
        "rules": [{"host": cluster.host, "http": {"paths": [_ingress_path(cluster, path) for path in PATHS]}}],
    }
    if cluster.ingress_class:
        spec["ingressClassName"] = cluster.ingress_class
    return {
        "ingress.yaml": {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "Ingress",
            "metadata": {**metadata(cluster, cluster.name, INGRESS), "annotations": _annotations(source)},
            "spec": spec,
        }
    }


def _ingress_path(cluster: Cluster, path: str) -> dict[str, Any]:
    below = path.endswith("/*")
    return {
        "path": path.removesuffix("*") if below else path,
        "pathType": "Prefix" if below else "Exact",
        "backend": {"service": {"name": cluster.name, "port": {"name": "http"}}},
    }


def _annotations(source: ExportSource) -> dict[str, str]:
    """Limits of controllers built on nginx, whose defaults refuse images and break long answers; others ignore them."""
    limits = {
        # larger than the gateway's own, which answers 413
        "proxy-body-size": f"{source.plan.settings.max_body_mib + 1}m",
        "proxy-read-timeout": str(SILENCE),
        "proxy-send-timeout": str(SILENCE),
        "proxy-buffering": "off",
    }
    return {f"nginx.ingress.kubernetes.io/{name}": value for name, value in limits.items()}


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
