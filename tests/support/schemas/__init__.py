"""Every JSON document that a test gets from the command line is checked here against the schema of its command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from typing import TYPE_CHECKING, Any

from dflash_deploy.errors import ExitCode
from dflash_deploy.schemas.generate import Schema, schema_of, subschemas
from dflash_deploy.schemas.table import DOCUMENTS, PROGRESS
from tests.support.schemas.seen import record

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator


@cache
def closed(name: str) -> Schema:
    """The schema without room for further properties: a property that is not documented is an error."""
    schema = deepcopy(schema_of(name))
    for one in subschemas(schema):
        if one.get("additionalProperties") is True:
            one["additionalProperties"] = False
    return schema


def problems(document: object) -> list[str]:
    """What is wrong with a document of `--json` or a line of `--json-stream`. Records what the document has."""
    name = _name(document)
    if name is None:
        return [f"neither a command nor a line of progress: {str(document)[:200]}"]
    found = [_said(error) for error in _validator(name).iter_errors(document)]
    if not found:
        record(name, closed(name), document)
    return found


def data_problems(name: str, data: object) -> list[str]:
    """What is wrong with the `data` of a command that succeeded: the result of an operation's `document()`."""
    # as JSON has it: no tuples
    return problems(json.loads(json.dumps(_envelope(name, data))))


def output_problems(args: tuple[str, ...], code: int, out: str) -> Iterator[str]:
    """What is wrong with the standard output of a command; nothing if it was not asked for JSON.

    A usage error comes before the command runs, so there is no document.
    """
    if not {"--json", "--json-stream"} & set(args) or (code == ExitCode.USAGE and not out):
        return
    try:
        documents = list(map(json.loads, out.splitlines())) if "--json-stream" in args else [json.loads(out)]
    except ValueError as problem:
        yield f"not JSON: {problem}: {out[:200]}"
        return
    for document in documents:
        yield from problems(document)
    if "--json-stream" in args and (not documents or documents[-1].get("event") != "result"):
        yield "the last line is not the result"


def checked_output(args: tuple[str, ...], code: int, out: str) -> None:
    """Fail if a command printed a document that its schema does not allow."""
    found = list(output_problems(args, code, out))
    assert not found, f"{' '.join(args)}:\n" + "\n".join(found)


@cache
def _validator(name: str) -> Draft202012Validator:
    # it takes two seconds, and each run of pytest imports this module
    from jsonschema import Draft202012Validator

    return Draft202012Validator(closed(name))


def _name(document: object) -> str | None:
    if not isinstance(document, dict):
        return None
    if document.get("event") == PROGRESS:
        return PROGRESS
    name = str(document.get("command"))
    return name if name in DOCUMENTS else None


def _said(error: Any) -> str:
    """The error where it is, with those of the alternatives that come nearest."""
    nearest = min((list(group) for group in _groups(error)), key=len, default=[])
    further = "".join(f"\n  {_said(one)}" for one in nearest)
    return f"{error.json_path}: {error.message[:300]}{further}"


def _groups(error: Any) -> Iterator[list[Any]]:
    groups: dict[object, list[Any]] = {}
    for one in error.context or ():
        groups.setdefault(one.relative_schema_path[0], []).append(one)
    yield from groups.values()


def _envelope(command: str, data: object) -> dict[str, object]:
    return {"schema": 1, "command": command, "status": "ok", "data": data, "findings": [], "error": None}
