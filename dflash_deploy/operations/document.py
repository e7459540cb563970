"""The JSON document of a command: what `--json` prints and what a support bundle holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from dflash_deploy.document import as_document
from dflash_deploy.errors import Defect

if TYPE_CHECKING:
    from dflash_deploy.errors import DeployError
    from dflash_deploy.plan.result import Finding
    from dflash_deploy.redact import Redact


SCHEMA = 1
"""Version of the document; a higher one means that a key has changed its meaning or is gone."""


def document(
    command: str,
    data: object,
    findings: Iterable[Finding] = (),
    failure: DeployError | None = None,
) -> dict[str, object]:
    """One document. Secrets in it are not redacted yet."""
    return {
        "schema": SCHEMA,
        "command": command,
        "status": "failed" if failure else "ok",
        "data": as_document(data),
        "findings": as_document(list(findings)),
        "error": failure and _error(failure),
    }


def _error(failure: DeployError) -> dict[str, object]:
    error: dict[str, object] = {"code": int(failure.exit_code), "message": failure.message, "hint": failure.hint}
    return error | {"report": failure.report} if isinstance(failure, Defect) else error


def redacted(node: object, redact: Redact) -> object:
    """The same data, every text in it without secrets. JSON escapes some characters: redact before it is written."""
    if isinstance(node, Mapping):
        return {key: redacted(value, redact) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [redacted(value, redact) for value in node]
    return redact(node) if isinstance(node, str) else node
