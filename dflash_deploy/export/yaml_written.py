"""YAML for programs in Go, such as kubectl, kustomize, helm and Compose: they read more texts as numbers than PyYAML.

Without quotes, kustomize makes a number of a setting such as `1e6` or `08`, and Kubernetes refuses the ConfigMap.
Compose writes them as `1e+06` and `8`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

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
