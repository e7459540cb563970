"""The `data` of `export`. No key is in any document."""

from __future__ import annotations

from collections.abc import Mapping

from dflash_deploy.features.export.operations import ComposeExport, KubernetesExport
from dflash_deploy.schemas.table import CommandData

DOCUMENTS: Mapping[str, CommandData] = {
    "export kubernetes": CommandData((KubernetesExport,)),
    "export compose": CommandData((ComposeExport,)),
}
