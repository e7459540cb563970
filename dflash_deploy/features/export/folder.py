"""The kustomize folder: the text of each of its files.

Programs in Go, such as kubectl, kustomize, helm and Compose, read more YAML texts as numbers than PyYAML. Without
quotes, kustomize makes a number of a setting such as `1e6` or `08`, and Kubernetes refuses the ConfigMap. Compose
writes them as `1e+06` and `8`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from dflash_deploy import __version__
from dflash_deploy.features.export.cluster import Cluster, ExportSource
from dflash_deploy.features.export.monitored import monitoring_objects
from dflash_deploy.features.export.objects import loader, objects, router_objects
from dflash_deploy.features.export.readme import readme

_FLOAT = re.compile(r"[-+]?(\.[0-9_]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9_]+)?\Z")
_OCTAL = re.compile(r"[-+]?0[oO][0-7_]+\Z")
_BOOL = re.compile(r"[yYnN]\Z")
"""What Go reads as a value other than text, beyond what PyYAML does: `resolve.go` of go-yaml."""


class _Quoting(yaml.SafeDumper):
    """YAML without anchors: a person reads each object by itself."""

    def ignore_aliases(self, data: object) -> bool:
        """Write what occurs twice twice."""
        return True


for _tag, _pattern, _first in (
    ("tag:yaml.org,2002:float", _FLOAT, "-+.0123456789"),
    ("tag:yaml.org,2002:int", _OCTAL, "-+0"),
    ("tag:yaml.org,2002:bool", _BOOL, "yYnN"),
):
    _Quoting.add_implicit_resolver(_tag, _pattern, list(_first))


def yaml_of(document: Mapping[str, Any]) -> str:
    """A document as YAML, in which each text is read as text."""
    return yaml.dump(dict(document), Dumper=_Quoting, sort_keys=False, width=120)


BASE = "base"
"""The folder with the objects; overlays of a person name it under `resources`."""

MONITORING = "monitoring"
"""The folder with what only some clusters can have. It has its own objects only, which an overlay may name."""

HEADER = """\
# Written by dflash-deploy {version} export kubernetes, from .env and dflash.lock.
# Put changes into an overlay of your own: an edited file is not written again.
"""


def folder(source: ExportSource, cluster: Cluster) -> dict[str, str]:
    """The text of each file, by its path below the folder. No text has a secret."""
    router = router_objects(source, cluster) if cluster.routed else {}
    texts = _kustomized(BASE, {**objects(source, cluster), **router})
    texts |= _kustomized(MONITORING, monitoring_objects(source, cluster))
    if cluster.weights == "claim":
        texts["loader.yaml"] = text_of(loader(source, cluster))
    texts["README.md"] = readme(source, cluster)
    return texts


def _kustomized(place: str, made: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The files of one folder of kustomize."""
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(made),
    }
    every = {**made, "kustomization.yaml": kustomization}
    return {f"{place}/{name}": text_of(document) for name, document in every.items()}


def text_of(document: Mapping[str, Any]) -> str:
    """A document as YAML, with a comment that says where it comes from."""
    return HEADER.format(version=__version__) + yaml_of(document)
