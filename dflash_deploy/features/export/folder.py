"""The kustomize folder: the text of each of its files, and the READMEs of both exports from the templates in `readme/`.

Programs in Go, such as kubectl, kustomize, helm and Compose, read more YAML texts as numbers than PyYAML. Without
quotes, kustomize makes a number of a setting such as `1e6` or `08`, and Kubernetes refuses the ConfigMap. Compose
writes them as `1e+06` and `8`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

import yaml

from dflash_deploy import __version__
from dflash_deploy.features.export.manifests import (
    KEYS_IN_SECRET,
    STARTS,
    Cluster,
    ExportSource,
    has_registry,
    is_pinned,
    objects,
    secret_name,
)
from dflash_deploy.plan.result import Plan
from dflash_deploy.serve.settings import Settings

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

HEADER = """\
# Written by dflash-deploy {version} export kubernetes, from .env and dflash.lock.
# Put changes into an overlay of your own: an edited file is not written again.
"""


def folder(source: ExportSource, cluster: Cluster) -> dict[str, str]:
    """The text of each file, by its path below the folder. No text has a secret."""
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(objects(source, cluster)),
    }
    documents = {**objects(source, cluster), "kustomization.yaml": kustomization}
    texts = {f"{BASE}/{name}": text_of(document) for name, document in documents.items()}
    texts["README.md"] = readme(source, cluster)
    return texts


def text_of(document: Mapping[str, Any]) -> str:
    """A document as YAML, with a comment that says where it comes from."""
    return HEADER.format(version=__version__) + yaml_of(document)


_BLOCK = re.compile(r"^\{\{if (\w+)\}\}\n(.*?)^\{\{end\}\}\n", re.MULTILINE | re.DOTALL)
"""Lines that are there if a value is."""

KEYS = (Settings.vllm_api_key.name, Settings.dflash_api_keys.name)


def filled(template: str, /, **values: Any) -> str:
    """A template of `readme/`: each `$value`, and the lines between `{{if value}}` and `{{end}}` with a value.

    Raises KeyError for a value that is missing.
    """
    text = (Path(__file__).parent / "readme" / f"{template}.md").read_text(encoding="utf-8")
    kept = _BLOCK.sub(lambda block: block[2] if values[block[1]] else "", text)
    return re.sub(r"\n{3,}", "\n\n", Template(kept).substitute(values))


def of_plan(plan: Plan) -> dict[str, str]:
    """What the head of each README says."""
    return {
        "profile": plan.profile.name,
        "pair": plan.pair.name,
        "engine": plan.engine.name,
        "version": __version__,
    }


def readme(source: ExportSource, cluster: Cluster) -> str:
    """The README of `export kubernetes`."""
    image, note = source.image(cluster), image_note(source, cluster)
    return filled(
        "kubernetes",
        **of_plan(source.plan),
        paths="\n".join(f"    {path}" for path in (source.target, source.drafter) if path),
        user=source.user,
        group=source.group,
        name=cluster.name,
        image=image,
        note=note,
        pinned=not note,
        pushed=note and has_registry(image),
        local=note and not has_registry(image),
        repository=image.rpartition(":")[0],
        architecture=source.architecture or "the processor of the nodes",
        secret=secret_name(cluster),
        secret_command=secret_command(source, cluster),
        minutes=minutes_of(source),
    )


def minutes_of(source: ExportSource) -> int:
    """The longest time of a first start, after which Kubernetes restarts a pod."""
    return max(1, round(STARTS * source.start_seconds / 60))


def secret_command(source: ExportSource, cluster: Cluster) -> str:
    """The line that creates the Secret. The keys go through a pipe, so neither `ps` nor a shell's history has them."""
    # as the engine reads .env: blanks and `export` may precede a name
    return (
        f"{plain_lines(source.env_file, *KEYS)} | "
        f"kubectl create secret generic {secret_name(cluster)} --from-file={KEYS_IN_SECRET}=/dev/stdin"
    )


def plain_lines(env_file: str, *names: str) -> str:
    """The command that prints settings of `.env` as lines of NAME=VALUE."""
    blank = "[[:space:]]"
    found = f"^{blank}*(export{blank}+)?({'|'.join(names)}){blank}*={blank}*"
    return f"sed -nE 's/{found}/\\2=/p' {shlex.quote(env_file)}"


def image_note(source: ExportSource, cluster: Cluster) -> str:
    """What is missing for the nodes to have the image; empty if it is named by its digest."""
    image = source.image(cluster)
    if is_pinned(image):
        return ""
    if has_registry(image):
        return f"{image} has no digest: a node that pulls it later may run another one"
    return f"{image} is on this machine only: push it to a registry, or load it onto each node"
