"""Optional folders of an export for Kubernetes, for what only some clusters have.

`autoscaling/` has a ScaledObject, with which KEDA adds engines before requests wait. `ingress/` publishes the endpoint
under a host, and `gateway/` under a host of a Gateway, both with the list of paths that the door has. `inference/` has
an InferencePool, whose endpoint picker chooses the engine for a Gateway. `monitoring/` has the objects from which the
Prometheus Operator reads the engines and the alerts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_deploy.door.caddyfile import PATHS
from dflash_deploy.features.export.cluster import USUAL_PROMETHEUS, Cluster, ExportSource
from dflash_deploy.features.export.objects import CLIENT_LABEL, engines_only, labels, metadata, selector
from dflash_deploy.features.export.pods import CONTAINER, PORT
from dflash_deploy.plan.sizes import USUAL_SEQUENCES

AUTOSCALING = "autoscaling"

LONGEST_POLICY, LONGEST_WINDOW = 1800, 3600
"""Seconds that Kubernetes allows for the period of a policy, and for a stabilization window."""


def start_minutes(source: ExportSource) -> int:
    """Minutes until a further engine answers, as far as the plan knows."""
    return max(1, round(source.start_seconds / 60))


def sequences(source: ExportSource) -> int:
    """Requests that one engine serves at the same time; the next one waits."""
    return source.plan.settings.max_num_seqs or USUAL_SEQUENCES


def autoscaling_note(source: ExportSource, cluster: Cluster) -> str:
    """The comment of the file: what autoscaling costs."""
    return f"""\
# A further engine loads the model first: expect about {start_minutes(source)} minutes until it answers.
# Requests wait meanwhile. So this follows a load that lasts for hours, and does not help against a short peak.
# {cluster.number} engines, each with GPUs of its own: without free ones its pod stays Pending.
"""


def autoscaling_objects(source: ExportSource, cluster: Cluster) -> dict[str, dict[str, Any]]:
    """Each object, by the name of its file."""
    return {
        "scaledobject.yaml": {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "ScaledObject",
            "metadata": metadata(cluster, cluster.name, AUTOSCALING),
            "spec": {
                "scaleTargetRef": _target(source, cluster),
                "minReplicaCount": cluster.replicas,
                "maxReplicaCount": cluster.max_replicas,
                "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(source)}},
                "triggers": [_trigger(source, cluster)],
            },
        }
    }


def _target(source: ExportSource, cluster: Cluster) -> dict[str, str]:
    if source.nodes > 1:
        return {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": cluster.name}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "name": cluster.name}


def _trigger(source: ExportSource, cluster: Cluster) -> dict[str, Any]:
    chosen = f'{{deployment="{cluster.name}"}}'
    return {
        "type": "prometheus",
        # engines = requests / threshold, so that one is added as soon as a request waits.
        # With waiting requests only, full engines would be removed as soon as there are enough of them
        "metricType": "AverageValue",
        "metadata": {
            "serverAddress": cluster.prometheus or USUAL_PROMETHEUS,
            "query": f"sum(dflash:running{chosen} + dflash:queue{chosen})",
            "threshold": str(sequences(source)),
            # a Prometheus that has lost the engines must not remove one
            "ignoreNullValues": "false",
        },
    }


def _behavior(source: ExportSource) -> dict[str, Any]:
    start = int(source.start_seconds)
    return {
        # the next one only when this one has had the time to load, and to take its share
        "scaleUp": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": min(start, LONGEST_POLICY)}]},
        # an engine that was not needed for as long as its start takes
        "scaleDown": {
            "stabilizationWindowSeconds": min(start, LONGEST_WINDOW),
            "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}],
        },
    }


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


ROUTE = "gateway"

UNLIMITED = "0s"
"""No limit for a whole answer: a long one takes longer than the usual limits of a Gateway."""


def route_objects(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """Each object, by the name of its file."""
    return {"httproute.yaml": http_route(cluster, {"name": cluster.name, "port": PORT})}


def http_route(cluster: Cluster, backend: Mapping[str, Any]) -> dict[str, Any]:
    """The HTTPRoute of the host. TLS and its certificate are the listener's."""
    parent = cluster.parent
    reference = {"name": parent.name, "sectionName": parent.listener}
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": metadata(cluster, cluster.name, ROUTE),
        "spec": {
            "parentRefs": [{"namespace": parent.namespace, **reference} if parent.namespace else reference],
            "hostnames": [cluster.host],
            "rules": [
                {
                    "matches": [{"path": _route_path(path)} for path in PATHS],
                    "backendRefs": [dict(backend)],
                    "timeouts": {"request": UNLIMITED},
                }
            ],
        },
    }


def _route_path(path: str) -> dict[str, str]:
    if path.endswith("/*"):
        # it also matches the path without the last slash, which is in the list itself
        return {"type": "PathPrefix", "value": path.removesuffix("*")}
    return {"type": "Exact", "value": path}


POOL = "inference"
GROUP = "inference.networking.k8s.io"

CANNOT = (
    "The endpoint picker is not in this folder: install one, such as that of llm-d, and name its Service.",
    "A picker reads /metrics without a key, and the engines refuse that: it knows neither queues nor caches.",
    "Requests pass neither the door nor SMG: a request that an engine fails is not repeated on another one.",
)
"""What an InferencePool cannot do with these engines."""


def pool_note() -> str:
    """The comment of the file."""
    return "".join(f"# {line}\n" for line in CANNOT)


def pool_objects(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """Each object, by the name of its file. The route has the name of the one in `gateway/`, which it replaces."""
    named = metadata(cluster, cluster.name, POOL)
    gateways = [{"namespaceSelector": {"matchLabels": {CLIENT_LABEL: "true"}}}]
    return {
        "pool.yaml": {
            "apiVersion": f"{GROUP}/v1",
            "kind": "InferencePool",
            "metadata": named,
            "spec": {
                "selector": {"matchLabels": selector(cluster)},
                "targetPorts": [{"number": PORT}],
                "endpointPickerRef": {
                    "name": cluster.picker.name,
                    "port": {"number": cluster.picker.port},
                    # each engine checks keys itself: without the picker, any of them may answer
                    "failureMode": "FailOpen",
                },
            },
        },
        "httproute.yaml": http_route(cluster, {"group": GROUP, "kind": "InferencePool", "name": cluster.name}),
        # the Gateway's pods reach the engines themselves
        "network.yaml": {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": metadata(cluster, f"{cluster.name}-inference", POOL),
            "spec": {
                **engines_only(cluster),
                "policyTypes": ["Ingress"],
                "ingress": [{"from": gateways, "ports": [{"protocol": "TCP", "port": PORT}]}],
            },
        },
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
