"""Which `data` each command prints, those of features included."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from dflash_deploy.document import CommandData
from dflash_deploy.registry import features
from dflash_deploy.schemas.table import CORE, PROGRESS

DOCUMENTS: Mapping[str, CommandData] = {
    **CORE,
    **{name: data for feature in features() for name, data in import_module(feature.documents).DOCUMENTS.items()},
}
"""Every command with `--json`, by its full name."""

NAMES = (*DOCUMENTS, PROGRESS)
"""The name of each schema: a command, or `progress` for a line of `--json-stream`."""
