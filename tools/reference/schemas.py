"""The page of documents in JSON: the envelope, the version rule, the `data` of each command; and each schema's file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial

from dflash_deploy.schemas.generate import Schema, schema_of
from dflash_deploy.schemas.table import DOCUMENTS, NAMES, PROGRESS
from tools.reference.markdown import BUILT, code, joined, table

_HEAD = f"""# Documents in JSON

Every command that reports has `--json`. It then prints exactly one document on standard output; everything else goes to
standard error. `dflash-deploy schema` lists the documents. This prints the [JSON Schema](https://json-schema.org)
(draft 2020-12) of one of them:

    dflash-deploy schema status

To use the documents in a program, see [use it in a script](../how-to/use-in-scripts.md).

{BUILT.format(source="`dflash_deploy/schemas/`")}

## The document
"""

_RULE = """A command that failed can have a result: if a check of `test` failed, `data` has all checks. A command that
fails before it has a result has an empty `data`. Unknown options and values of the wrong type are refused before the
command runs, with [exit code](exit-codes.md) 2 and without a document.

## What may change

`schema` is the version of all documents. It is 1. Within version 1:

- Properties may be added, to every object. Ignore those that you do not know.
- A property keeps its name, its meaning, its unit and its type. It is not removed.
- A property in `required` stays there. A value that is never `null` does not become `null`.
- Lists of values may grow, such as that of `state`. Expect values that you do not know.
- Texts for people, such as `message`, `hint`, `title` and `phase`, may change. Use `code`, `state` and ids to decide.
- A command may get a further kind of `data`, for a new option.

A change that breaks one of these rules needs version 2, from the first release on. A test checks each document that
any test of this project obtains.

Each schema allows further properties, as the rule does. A document of a newer release can have a value that an older
schema does not list: validate with the schema of the release that you run.

## The data of each command

Each file is the whole schema, with the type and the meaning of every property.
"""

_PROGRESS_HEAD = f"""## progress

A line of `--json-stream` before the last one ([schema](schemas/{PROGRESS}.json)). The last line is the document of the
command, with `event` `result`.
"""


def files() -> Iterator[tuple[str, Callable[[], str]]]:
    """The name of each schema's file in docs/reference, and the function that returns its text."""
    for name in NAMES:
        yield _file(name), partial(_text, name)


def _file(name: str) -> str:
    return f"schemas/{name.replace(' ', '-')}.json"


def _text(name: str) -> str:
    return json.dumps(schema_of(name), indent=2) + "\n"


def page() -> str:
    """The whole page."""
    envelope = schema_of("up")
    parts = [_HEAD, *_table(envelope, envelope), *_object(envelope, "CommandFailure", "error")]
    parts += [*_object(envelope, "Finding", "findings[]"), _RULE]
    rows = ((_link(name), _data(schema_of(name))) for name in DOCUMENTS)
    progress = schema_of(PROGRESS)
    return joined(*parts, *table(("command", "data"), rows), _PROGRESS_HEAD, *_table(progress, progress))


def _data(schema: Schema) -> str:
    """The first sentence of each kind of data."""
    kinds = (_resolved(schema, one)["description"] for one in schema["properties"]["data"]["anyOf"][:-1])
    return " ".join(f"{kind.partition('. ')[0].rstrip('.')}." for kind in kinds)


def _link(name: str) -> str:
    return f"[{name}]({_file(name)})"


def _object(whole: Schema, name: str, where: str) -> Iterator[str]:
    yield f"Properties of `{where}`:\n"
    yield from _table(whole, whole["$defs"][name])


def _table(whole: Schema, schema: Schema) -> Iterator[str]:
    required = schema["required"]
    rows = (
        (code(name), _kind(whole, one) + ("" if name in required else ", may be missing"), _meaning(whole, one))
        for name, one in schema["properties"].items()
    )
    yield from table(("property", "value", "meaning"), rows)


def _resolved(whole: Schema, schema: Schema) -> Schema:
    found: Schema = whole["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    return found


def _meaning(whole: Schema, schema: Schema) -> str:
    return str(schema.get("description") or _resolved(whole, schema)["description"])


def _kind(whole: Schema, schema: Schema) -> str:
    """The type in words, or the values."""
    schema = _resolved(whole, schema)
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(whole, one) for one in schema["anyOf"]))
    if "const" in schema or "enum" in schema:
        return " or ".join(code(json.dumps(one)) for one in schema.get("enum", [schema.get("const")]))
    if schema["type"] == "array":
        inner = _kind(whole, schema["items"])
        return f"array of {inner}s" if " " not in inner and "`" not in inner else "array"
    return str(schema["type"])
