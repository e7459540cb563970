"""The JSON Schema (draft 2020-12) of a document, from the types of its `data`."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from dflash_deploy.operations.document import SCHEMA
from dflash_deploy.schemas.common import ErrorData, FindingData
from dflash_deploy.schemas.every import DOCUMENTS
from dflash_deploy.schemas.running import ProgressData
from dflash_deploy.schemas.table import PROGRESS, CommandData

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_NO_DATA: Schema = {"type": "object", "description": "The command failed before it had a result.", "properties": {}}


def schema_of(name: str) -> Schema:
    """The schema of a command's document, or of a line of `--json-stream` before the last one. Raises KeyError."""
    return deepcopy(_generated(name))


@cache
def _generated(name: str) -> Schema:
    whole = _progress() if name == PROGRESS else _document(name, DOCUMENTS[name])
    for one in subschemas(whole):
        _tidy(one)
    title = "a line of --json-stream before the last one" if name == PROGRESS else f"{name} --json"
    head = {
        "$schema": DIALECT,
        "$id": f"urn:dflash-deploy:schema:{SCHEMA}:{name.replace(' ', '-')}",
        "title": f"dflash-deploy {title}",
    }
    return head | whole


def subschemas(schema: Schema) -> Iterator[Schema]:
    """A schema and all schemas in it, but not those that it refers to."""
    yield schema
    for key in ("properties", "$defs"):
        for one in schema.get(key, {}).values():
            yield from subschemas(one)
    for key in ("anyOf", "prefixItems"):
        for one in schema.get(key, ()):
            yield from subschemas(one)
    for key in ("items", "additionalProperties", "if", "then", "else"):
        if isinstance(one := schema.get(key), dict):
            yield from subschemas(one)


def _tidy(schema: Schema) -> None:
    """Allow further properties, which a later release may have, and take out what says nothing of a document."""
    schema.pop("title", None)
    schema.pop("default", None)
    if text := schema.get("description"):
        # those of the catalog are also the comments of its example
        schema["description"] = text[0].upper() + text[1:].rstrip(".") + "."
    if schema.get("type") == "object" and "properties" in schema:
        schema["additionalProperties"] = True


def _progress() -> Schema:
    return TypeAdapter(ProgressData).json_schema(mode="serialization")


def _document(name: str, known: CommandData) -> Schema:
    """The envelope around `data`. A command that succeeded has a result and no error."""
    types = (*known.done, *known.failed, FindingData, ErrorData)
    found, defs = TypeAdapter.json_schemas([(type_, "serialization", TypeAdapter(type_)) for type_ in types])
    refs = {type_: found[type_, "serialization"] for type_ in types}
    done = [refs[type_] for type_ in known.done]
    failed = [refs[type_] for type_ in known.failed]
    properties = {
        "schema": {"const": SCHEMA, "description": "Version of the document: see docs/reference/json.md."},
        "command": {"const": name, "description": "The command."},
        "status": {"enum": ["ok", "failed"], "description": "Whether the command did what it was asked to do."},
        "data": {
            "anyOf": [*done, *failed, {"$ref": "#/$defs/NoData"}],
            "description": "The result. A command that failed may have one too, such as the checks of `test`.",
        },
        "findings": {
            "type": "array",
            "items": refs[FindingData],
            "description": "What the rules found in the plan; empty for a command that makes no plan.",
        },
        "error": {
            "anyOf": [refs[ErrorData], {"type": "null"}],
            "description": "Why the command failed; null if it did not.",
        },
    }
    event = {"const": "result", "description": "Only with `--json-stream`: this line is the document."}
    return {
        "description": f"The document that `dflash-deploy {name} --json` prints on standard output.",
        "type": "object",
        "properties": ({"event": event} if known.streams else {}) | properties,
        "required": list(properties),
        "if": {"properties": {"status": {"const": "ok"}}},
        "then": {"properties": {"data": {"anyOf": done}, "error": {"type": "null"}}},
        "else": {"properties": {"error": refs[ErrorData]}},
        "$defs": {"NoData": _NO_DATA, **defs["$defs"]},
    }
