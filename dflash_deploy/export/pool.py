"""The folder `inference/`: an InferencePool, whose endpoint picker chooses the engine for a Gateway."""

from __future__ import annotations

from typing import Any

from dflash_deploy.export.cluster import Cluster
from dflash_deploy.export.objects import CLIENT_LABEL, engines_only, metadata, selector
from dflash_deploy.export.pod import PORT
from dflash_deploy.export.route import http_route

COMPONENT = "inference"
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
    named = metadata(cluster, cluster.name, COMPONENT)
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
            "metadata": metadata(cluster, f"{cluster.name}-inference", COMPONENT),
            "spec": {
                **engines_only(cluster),
                "policyTypes": ["Ingress"],
                "ingress": [{"from": gateways, "ports": [{"protocol": "TCP", "port": PORT}]}],
            },
        },
    }
