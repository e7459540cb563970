"""The JSON Schema (draft 2020-12) of a document, from the types of its `data`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from inspect import cleandoc, getsource
from itertools import pairwise
from textwrap import dedent
from typing import Any, Literal, get_type_hints

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core.core_schema import DataclassField, DataclassSchema

from dflash_deploy.document import SCHEMA, CommandData, CommandFailure, shown_of
from dflash_deploy.plan.result import Finding
from dflash_deploy.schemas.table import DOCUMENTS, PROGRESS
from dflash_deploy.startup.progress import StartProgress

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_NO_DATA: Schema = {"type": "object", "description": "The command failed before it had a result.", "properties": {}}


def schema_of(name: str) -> Schema:
    """The schema of a command's document, or of a line of `--json-stream` before the last one. Raises KeyError."""
    return deepcopy(_generated(name))


@cache
def _generated(name: str) -> Schema:
    if name == PROGRESS:
        whole = TypeAdapter(StartProgress).json_schema(mode="serialization", schema_generator=_Generate)
    else:
        whole = _document(name, DOCUMENTS[name])
    for one in subschemas(whole):
        _tidy(one)
    title = "a line of --json-stream before the last one" if name == PROGRESS else f"{name} --json"
    head = {
        "$schema": DIALECT,
        "$id": f"urn:dflash-deploy:schema:{SCHEMA}:{name.replace(' ', '-')}",
        "title": f"dflash-deploy {title}",
    }
    return head | whole


class _Generate(GenerateJsonSchema):
    """As `as_document` writes: a field of a dataclass with the default `None` is missing instead of null."""

    def field_is_required(self, field: Any, total: bool) -> bool:
        if field["type"] == "dataclass-field":
            return not _may_be_missing(field)
        return super().field_is_required(field, total)

    def dataclass_field_schema(self, schema: DataclassField) -> Schema:
        inner: Any = schema["schema"]
        if _may_be_missing(schema) and inner["schema"]["type"] == "nullable":
            return self.generate_inner(inner["schema"]["schema"])
        return super().dataclass_field_schema(schema)

    def dataclass_schema(self, schema: DataclassSchema) -> Schema:
        found = super().dataclass_schema(schema)
        for kind in schema["cls"].__mro__[:-1]:
            for name, text in _docstrings(kind):
                if name in found["properties"]:
                    found["properties"][name].setdefault("description", text)
        for name, getter in shown_of(schema["cls"]).items():
            adapter = TypeAdapter[Any](get_type_hints(getter, include_extras=True)["return"])
            described = {"description": cleandoc(getter.__doc__ or "")}
            found["properties"][name] = self.generate_inner(adapter.core_schema) | described
            found.setdefault("required", []).append(name)
        return found


def _docstrings(kind: type) -> Iterator[tuple[str, str]]:
    """Each field of a class itself that has a docstring below it, with the docstring."""
    (defined,) = ast.parse(dedent(getsource(kind))).body
    assert isinstance(defined, ast.ClassDef)  # noqa: S101 - for the types: it is the source of a class
    for field, text in pairwise(defined.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match text:
                case ast.Expr(value=ast.Constant(value=str(words))):
                    yield field.target.id, cleandoc(words)


def _may_be_missing(field: DataclassField) -> bool:
    inner: Any = field["schema"]
    return bool(inner["type"] == "default" and inner.get("default", ...) is None)


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
    if schema.get("format") == "path":
        del schema["format"]
    if text := schema.get("description"):
        # those of the catalog are also the comments of its example
        schema["description"] = text[0].upper() + text[1:].rstrip(".") + "."
    if schema.get("type") == "object" and "properties" in schema:
        schema["additionalProperties"] = True


def _document(name: str, known: CommandData) -> Schema:
    """The envelope around `data`. A command that succeeded has a result and no error."""
    types = (*known.done, *known.failed, Finding, CommandFailure)
    mode: Literal["serialization"] = "serialization"
    adapters = [(type_, mode, TypeAdapter[Any](type_)) for type_ in types]
    found, defs = TypeAdapter.json_schemas(adapters, schema_generator=_Generate)
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
            "items": refs[Finding],
            "description": "What the rules found in the plan; empty for a command that makes no plan.",
        },
        "error": {
            "anyOf": [refs[CommandFailure], {"type": "null"}],
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
        "else": {"properties": {"error": refs[CommandFailure]}},
        "$defs": {"NoData": _NO_DATA, **defs["$defs"]},
    }
