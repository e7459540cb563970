"""Within one version of the documents nothing is removed, renamed or retyped: docs/reference/json.md has the rule."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from dflash_deploy.document import SCHEMA
from dflash_deploy.schemas.generate import schema_of
from dflash_deploy.schemas.table import NAMES
from tests.support.schemas.compare import breaches
from tools.schemas.released import released

Change = Callable[[dict[str, Any]], object]

RELEASED = released()


def test_no_document_of_the_last_release_is_gone() -> None:
    assert set(RELEASED) <= set(NAMES)


@pytest.mark.parametrize("name", RELEASED)
def test_a_program_for_the_last_release_reads_the_documents_of_this_one(name: str) -> None:
    if RELEASED[name]["$id"].split(":")[3] != str(SCHEMA):
        # a new version may change everything; its first release is what later ones are compared with
        return
    assert breaches(RELEASED[name], schema_of(name)) == []


def definition(name: str, property_: str | None = None) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def find(schema: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = schema["$defs"][name]
        inner: dict[str, Any] = found["properties"][property_] if property_ else found
        return inner

    return find


STATUS = definition("StatusData")
OF = {name: definition("StatusData", name) for name in ("state", "restarts", "engine", "memory_gib")}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: STATUS(s)["properties"].pop("restarts"), "document.data.restarts: gone"),
        (lambda s: STATUS(s)["required"].remove("state"), "document.data.state: may be missing now"),
        (lambda s: OF["restarts"](s).update(type="string"), "document.data.restarts: may be string now"),
        (lambda s: OF["restarts"](s).update(type="number"), "document.data.restarts: may be number now"),
        (lambda s: OF["restarts"](s).update(type=["integer", "null"]), "document.data.restarts: may be null now"),
        (lambda s: OF["engine"](s)["anyOf"].append({"type": "object"}), "document.data.engine: may be object now"),
        (lambda s: OF["state"](s)["enum"].remove("ready"), "document.data.state: the value 'ready' is gone"),
        (lambda s: OF["state"](s).pop("enum"), "document.data.state: may be any value now"),
        (lambda s: s["properties"]["schema"].update(const=2), "document.schema: the value 1 is gone"),
        (lambda s: s["properties"].update(command={"enum": ["status", "x"]}), "document.command: was always 'status'"),
        (lambda s: s["properties"]["findings"].pop("items"), "document.findings[]: may be anything now"),
        (lambda s: s["$defs"]["Finding"]["properties"].pop("fix"), "document.findings[].fix: gone"),
        (lambda s: s["$defs"]["ErrorData"]["properties"].pop("report"), "document.error.report: gone"),
    ],
)
def test_a_change_that_breaks_a_program_is_found(change: Change, says: str) -> None:
    new = schema_of("status")
    change(new)
    assert breaches(schema_of("status"), new) == [says]


@pytest.mark.parametrize(
    "change",
    [
        lambda s: STATUS(s)["properties"].update(pid={"type": "integer"}),
        lambda s: STATUS(s)["required"].append("do"),
        lambda s: OF["state"](s)["enum"].append("draining"),
        lambda s: OF["engine"](s).update(anyOf=[{"type": "string"}]),
        lambda s: OF["memory_gib"](s).update(anyOf=[{"type": "integer"}, {"type": "null"}]),
        lambda s: OF["restarts"](s).update(enum=[0, 1]),
        lambda s: (
            s["$defs"].update(More={"type": "object", "properties": {"more": {"type": "string"}}})
            or s["properties"]["data"]["anyOf"].append({"$ref": "#/$defs/More"})
        ),
    ],
)
def test_a_change_that_breaks_no_program_is_allowed(change: Change) -> None:
    new = schema_of("status")
    change(new)
    assert new != schema_of("status")
    assert breaches(schema_of("status"), new) == []


def test_a_command_that_no_longer_has_one_of_its_results_is_found() -> None:
    new = deepcopy(schema_of("pull"))
    new["properties"]["data"]["anyOf"] = [
        one for one in new["properties"]["data"]["anyOf"] if "PullMovedData" not in one["$ref"]
    ]
    assert breaches(schema_of("pull"), new) == ["document.data.moved: gone"]


def test_a_map_whose_values_change_is_found() -> None:
    new = schema_of("plan")
    new["$defs"]["Decision"]["properties"]["value"]["type"] = "integer"
    assert breaches(schema_of("plan"), new) == ["document.data.settings[].value: may be integer now"]
    new = schema_of("pull")
    new["$defs"]["PullWrongData"]["properties"]["wrong"]["additionalProperties"] = {"type": "object"}
    assert breaches(schema_of("pull"), new) == ["document.data.wrong.*: may be object now"]
