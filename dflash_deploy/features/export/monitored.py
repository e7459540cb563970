"""The folder `monitoring/` of an export for Kubernetes: what the Prometheus Operator reads engines and alerts from."""

from __future__ import annotations

from typing import Any

from dflash_deploy.features.export.cluster import Cluster, ExportSource
from dflash_deploy.features.export.objects import engines_only, labels, metadata
from dflash_deploy.features.export.pods import CONTAINER, PORT

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
