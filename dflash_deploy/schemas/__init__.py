"""The JSON Schema of every document that a command prints with `--json`. No other command imports it."""

from dflash_deploy.schemas.generate import schema_of
from dflash_deploy.schemas.table import DOCUMENTS, PROGRESS

NAMES = (*DOCUMENTS, PROGRESS)
"""The name of each schema: a command, or `progress` for a line of `--json-stream`."""

__all__ = ["DOCUMENTS", "NAMES", "PROGRESS", "schema_of"]
