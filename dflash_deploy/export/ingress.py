"""The folder `ingress/`: the endpoint under a host, with the list of paths that the door has."""

from __future__ import annotations

from typing import Any

from dflash_deploy.door.caddyfile import PATHS
from dflash_deploy.export.cluster import Cluster, ExportSource
from dflash_deploy.export.objects import metadata

COMPONENT = "ingress"

SILENCE = 3600
"""Seconds for which an engine may be silent, as for the door: a long prompt on a slow machine."""


def tls_secret(cluster: Cluster) -> str:
    """The Secret with the certificate of the host."""
    return f"{cluster.name}-tls"


def ingress_objects(source: ExportSource, cluster: Cluster) -> dict[str, dict[str, Any]]:
    """Each object, by the name of its file."""
    spec: dict[str, Any] = {
        "tls": [{"hosts": [cluster.host], "secretName": tls_secret(cluster)}],
        "rules": [{"host": cluster.host, "http": {"paths": [_path(cluster, path) for path in PATHS]}}],
    }
    if cluster.ingress_class:
        spec["ingressClassName"] = cluster.ingress_class
    return {
        "ingress.yaml": {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "Ingress",
            "metadata": {**metadata(cluster, cluster.name, COMPONENT), "annotations": _annotations(source)},
            "spec": spec,
        }
    }


def _path(cluster: Cluster, path: str) -> dict[str, Any]:
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
