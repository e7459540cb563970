"""The kustomize folder: the text of each of its files, and how it differs from a fresh export.

Programs in Go, such as kubectl, kustomize, helm and Compose, read more YAML texts as numbers than PyYAML. Without
quotes, kustomize makes a number of a setting such as `1e6` or `08`, and Kubernetes refuses the ConfigMap. Compose
writes them as `1e+06` and `8`. `differences` compares the manifests value by value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from dflash_deploy import __version__
from dflash_deploy.features.export.cluster import Cluster, ExportSource
from dflash_deploy.features.export.monitored import monitoring_objects
from dflash_deploy.features.export.objects import loader, objects, router_objects
from dflash_deploy.features.export.readme import readme
from dflash_deploy.intake.parse import Invalid, parse_yaml

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


MISSING = "missing"
"""Shown for a value or a file that only one side has."""

LONGEST = 120
"""Characters of a shown value."""


@dataclass(frozen=True)
class Difference:
    """One value that differs. `place` is its path in the document, such as `data.MAX_NUM_SEQS`; empty for the file."""

    file: str
    place: str
    folder: str
    plan: str


def differences(folder: Mapping[str, str], plan: Mapping[str, str]) -> tuple[Difference, ...]:
    """Each value in which the texts of a folder differ from those that the plan gives, in the order of the files.

    `folder` has the files of the last export that still exist.
    """
    return tuple(
        found for name in sorted({*folder, *plan}) for found in _of_file(name, folder.get(name), plan.get(name))
    )


def _of_file(name: str, folder: str | None, plan: str | None) -> Iterator[Difference]:
    if folder == plan:
        return
    if folder is None or plan is None:
        yield Difference(name, "", MISSING if folder is None else "exists", MISSING if plan is None else "exists")
        return
    found = tuple(_of_documents(name, folder, plan)) if name.endswith(".yaml") else ()
    # another text with the same values: a comment, or the order of the keys
    yield from found or (Difference(name, "", "another text", "the exported text"),)


def _of_documents(name: str, folder: str, plan: str) -> Iterator[Difference]:
    try:
        there = parse_yaml(folder)
    except Invalid as problem:
        yield Difference(name, "", str(problem), "the exported text")
        return
    yield from _of_values(name, "", there, parse_yaml(plan))


def _of_values(name: str, place: str, there: Any, here: Any) -> Iterator[Difference]:
    if isinstance(there, dict) and isinstance(here, dict):
        for key in {**here, **there}:
            inner = f"{place}.{key}" if place else str(key)
            yield from _of_values(name, inner, there.get(key, _NONE), here.get(key, _NONE))
    elif isinstance(there, list) and isinstance(here, list):
        for index in range(max(len(there), len(here))):
            one, other = (side[index] if index < len(side) else _NONE for side in (there, here))
            yield from _of_values(name, f"{place}[{index}]", one, other)
    elif there != here or type(there) is not type(here):
        yield Difference(name, place, _shown(there), _shown(here))


_NONE = object()
"""In the place of a value that a document does not have."""


def _shown(value: Any) -> str:
    if value is _NONE:
        return MISSING
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= LONGEST else text[:LONGEST] + "…"
