"""The folder `gateway/`: the endpoint under a host of a Gateway, with the list of paths that the door has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_deploy.door.caddyfile import PATHS
from dflash_deploy.export.cluster import Cluster
from dflash_deploy.export.objects import metadata
from dflash_deploy.export.pod import PORT

COMPONENT = "gateway"

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
        "metadata": metadata(cluster, cluster.name, COMPONENT),
        "spec": {
            "parentRefs": [{"namespace": parent.namespace, **reference} if parent.namespace else reference],
            "hostnames": [cluster.host],
            "rules": [
                {
                    "matches": [{"path": _path(path)} for path in PATHS],
                    "backendRefs": [dict(backend)],
                    "timeouts": {"request": UNLIMITED},
                }
            ],
        },
    }


def _path(path: str) -> dict[str, str]:
    if path.endswith("/*"):
        # it also matches the path without the last slash, which is in the list itself
        return {"type": "PathPrefix", "value": path.removesuffix("*")}
    return {"type": "Exact", "value": path}
