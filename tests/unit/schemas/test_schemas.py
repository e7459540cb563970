"""The schemas: one for each command with `--json`, valid, described and open."""

import inspect
import json
from typing import Any

from jsonschema import Draft202012Validator

from dflash_deploy.schemas.generate import Schema, schema_of, subschemas
from dflash_deploy.schemas.table import DOCUMENTS, NAMES
from tests.support.rows import each_of, first_of
from tools.reference.commands import commands

COMMANDS = dict(commands())


def parameters(name: str) -> set[str]:
    return {one.name for one in COMMANDS[name].params}


def test_every_command_with_json_has_a_schema_and_no_schema_is_left_over() -> None:
    assert {name for name in COMMANDS if "as_json" in parameters(name)} == set(DOCUMENTS)


def test_the_schema_of_a_command_with_json_stream_has_its_last_line() -> None:
    streams = {name for name in COMMANDS if "json_stream" in parameters(name)}
    assert {name for name, known in DOCUMENTS.items() if known.streams} == streams
    assert {name for name in DOCUMENTS if "event" in schema_of(name)["properties"]} == streams


@each_of(DOCUMENTS)
def test_a_schema_has_the_name_that_the_command_writes(name: str) -> None:
    written = inspect.unwrap(COMMANDS[name].callback).__name__.replace("__", "-").replace("_", " ")
    assert schema_of(name)["properties"]["command"]["const"] == written


def parts() -> dict[str, Schema]:
    """The schemas without their definitions, and each definition: most are in several schemas."""
    found: dict[str, Schema] = {}
    for name in NAMES:
        whole = schema_of(name)
        for key, one in whole.pop("$defs", {}).items():
            found.setdefault(json.dumps(one), {"$defs": {key: one}})
        found[name] = whole
    return found


@each_of(lambda: parts().items(), name=first_of)
def test_a_schema_is_valid(part: tuple[str, Schema]) -> None:
    Draft202012Validator.check_schema(part[1])


def described(whole: Schema, schema: Schema) -> bool:
    """Whether it says what it means, itself or where it refers to."""
    target: dict[str, Any] = whole["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else {}
    return bool(schema.get("description") or target.get("description"))


@each_of(NAMES)
def test_every_property_says_what_it_means(name: str) -> None:
    schema = schema_of(name)
    for key in ("then", "else"):
        # they only choose among what `properties` describes
        schema.pop(key, None)
    schema.pop("if", None)
    silent = [
        key
        for one in subschemas(schema)
        for key, value in one.get("properties", {}).items()
        if not described(schema, value)
    ]
    assert silent == []


@each_of(NAMES)
def test_every_object_allows_properties_of_later_releases_and_names_those_that_it_always_has(name: str) -> None:
    objects = [one for one in subschemas(schema_of(name)) if one.get("type") == "object" and "properties" in one]
    assert objects
    assert [one for one in objects if one["additionalProperties"] is not True] == []
    assert [one for one in objects if one["properties"] and "required" not in one] == []
