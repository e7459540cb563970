"""The kustomize folder: the text of each of its files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_deploy import __version__
from dflash_deploy.export.autoscaling import autoscaling_note, autoscaling_objects
from dflash_deploy.export.cluster import Cluster, ExportSource
from dflash_deploy.export.ingress import ingress_objects
from dflash_deploy.export.metrics import monitoring_objects
from dflash_deploy.export.objects import loader, objects
from dflash_deploy.export.pool import pool_note, pool_objects
from dflash_deploy.export.pull import pull_objects
from dflash_deploy.export.readme import readme
from dflash_deploy.export.route import route_objects
from dflash_deploy.export.router import router_objects
from dflash_deploy.export.yaml_written import yaml_of

BASE = "base"
"""The folder with the objects; overlays of a person name it under `resources`."""

PULL = "pull"
"""The folder with the Job that fills the claim of the weights."""

MONITORING, INGRESS, GATEWAY, INFERENCE = "monitoring", "ingress", "gateway", "inference"
AUTOSCALING = "autoscaling"
"""The folders with what only some clusters can have. Each has its own objects only: an overlay names those it needs."""

HEADER = """\
# Written by dflash-deploy {version} export kubernetes, from .env and dflash.lock.
# Put changes into an overlay of your own: an edited file is not written again.
"""


def folder(source: ExportSource, cluster: Cluster) -> dict[str, str]:
    """The text of each file, by its path below the folder. No text has a secret."""
    router = router_objects(source, cluster) if cluster.routed else {}
    texts = _kustomized(BASE, {**objects(source, cluster), **router})
    texts |= _kustomized(MONITORING, monitoring_objects(source, cluster))
    if cluster.gateway:
        texts |= _kustomized(GATEWAY, route_objects(cluster))
    elif cluster.host:
        texts |= _kustomized(INGRESS, ingress_objects(source, cluster))
    if cluster.endpoint_picker:
        texts |= _kustomized(INFERENCE, pool_objects(cluster), pool_note())
    if cluster.max_replicas:
        made = autoscaling_objects(source, cluster)
        texts |= _kustomized(AUTOSCALING, made, autoscaling_note(source, cluster))
    if cluster.weights == "claim":
        texts["loader.yaml"] = text_of(loader(source, cluster))
        if source.pull_files:
            texts |= _kustomized(PULL, pull_objects(source, cluster))
    texts["README.md"] = readme(source, cluster)
    return texts


def _kustomized(place: str, made: Mapping[str, Mapping[str, Any]], note: str = "") -> dict[str, str]:
    """The files of one folder of kustomize. `note` is a comment of each file."""
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(made),
    }
    every = {**made, "kustomization.yaml": kustomization}
    return {f"{place}/{name}": text_of(document, note) for name, document in every.items()}


def text_of(document: Mapping[str, Any], note: str = "") -> str:
    """A document as YAML, with a comment that says where it comes from, and a further one."""
    return HEADER.format(version=__version__) + note + yaml_of(document)
