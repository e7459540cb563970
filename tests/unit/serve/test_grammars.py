"""What an engine compiles is bounded before it reaches it; agents with many tools are not."""

import json
from typing import Any

import pytest

from dflash_deploy.serve.gateway.asgi import ErrorAnswer
from dflash_deploy.serve.gateway.grammars import GrammarLimits, written_out
from tests.support.contract import properties, with_schema


def code(said: dict[str, Any], **settings: str) -> str:
    """The code of the refusal; empty without one."""
    try:
        GrammarLimits(settings).check(said)
    except ErrorAnswer as refusal:
        return refusal.code
    return ""


def nested(levels: int, kind: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"properties": {"a": schema}} if kind == "object" else {"items": schema}
    return schema


def values(count: int) -> list[str]:
    return [f"v{number:07}" for number in range(count)]


NESTED = "((a{1,200}){1,200}){1,200}"
OPTIONAL = "(a|b)?" * 300

SCHEMAS: dict[str, dict[str, Any]] = {
    "values": {"enum": values(4000)},
    "alternatives": {"anyOf": [{"const": one} for one in values(3000)]},
    "long values": {"enum": [f"{one}{'x' * 1000}" for one in values(50)]},
    "a long constant": {"const": "x" * 100_000},
    "properties": properties(500),
    "many objects": {"properties": {f"o{number}": properties(100) for number in range(50)}},
    "levels of objects": nested(400, "object"),
    "levels of lists": nested(400, "list"),
    "repetitions": {"pattern": NESTED},
    "one repetition": {"pattern": "a{1,10000}"},
    "optional items": {"pattern": OPTIONAL},
    "names by pattern": {"patternProperties": {OPTIONAL: {}}},
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_that_takes_minutes_is_refused_wherever_it_is(name: str) -> None:
    schema = SCHEMAS[name]
    for said in (
        with_schema(schema),
        {"response_format": {"type": "json_object", "schema": schema}},
        {"text": {"format": {"type": "json_schema", "schema": schema}}},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]},
        {"tools": [{"name": "f", "input_schema": {"type": "object", "properties": {"a": schema}}}]},
        {"structured_outputs": {"json": schema}},
        {"structured_outputs": {"json": json.dumps(schema)}},
        {"structured_outputs": {"structural_tag": json.dumps({"format": {"json_schema": schema}})}},
        {"guided_json": schema},
        {"json_schema": schema},
    ):
        assert code(said) == "grammar_too_large", said.keys()


@pytest.mark.parametrize("text", [NESTED, OPTIONAL, "[a-z]? " * 400, " | ".join(values(4000)), "x" * 100_000])
def test_so_are_patterns_grammars_and_choices(text: str) -> None:
    for said in (
        {"structured_outputs": {"regex": text}},
        {"structured_outputs": {"grammar": f"root ::= {text}"}},
        {"grammar": f"root ::= {text}"},
        {"regex": text},
        {"ebnf": text},
        {"guided_regex": text},
        {"response_format": {"type": "structural_tag", "format": {"type": "regex", "pattern": text}}},
    ):
        assert code(said) == "grammar_too_large", said.keys()
    assert code({"structured_outputs": {"choice": values(4000)}}) == "grammar_too_large"


def test_lists_that_a_sampler_reads_are_bounded() -> None:
    assert code({"dry_sequence_breakers": values(33)}) == "request_too_large"
    assert code({"stop": values(2000)}) == code({"samplers": ["top_k"] * 2000}) == "request_too_large"
    assert code({"dry_sequence_breakers": ["\n", ":", '"', "*"], "stop": values(16), "logit_bias": {"5": 1}}) == ""


def tool(number: int, fields: int, described: int) -> dict[str, Any]:
    schema = properties(fields) | {"description": "x" * described}
    schema["properties"] |= {
        "when": {"pattern": r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2})?$"},
        "kind": {"enum": values(8)},
    }
    return {"type": "function", "function": {"name": f"f{number}", "parameters": schema}}


@pytest.mark.parametrize(("fields", "described"), [(2, 3800), (30, 2500), (40, 2300)])
def test_two_hundred_tools_of_an_agent_are_fine(fields: int, described: int) -> None:
    tools = [tool(number, fields, described) for number in range(200)]
    assert 3500 < len(json.dumps(tools)) / 200 < 4500
    assert code({"tools": tools}) == ""
    assert code({"tools": tools}, MAX_GRAMMAR_KIB="512") == "grammar_too_large"


def test_what_applications_send_is_fine() -> None:
    uuid = "^[0-9a-f]{8}-[0-9a-f]{4}-[1-5][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"
    address = r"^(([0-9]{1,3})\.){3}[0-9]{1,3}$"
    schema = {"properties": {"a": {"pattern": uuid}, "b": {"pattern": address}, "c": {"enum": values(500)}}}
    assert code(with_schema(schema)) == ""
    assert code(with_schema({"type": "object", "properties": {"pattern": {"type": "string"}}})) == ""
    assert code({"grammar": 'root ::= "yes" | "no"\n'}) == code({"messages": "x" * 100_000}) == ""


@pytest.mark.parametrize(
    ("pattern", "counts"),
    [
        ("abc", (0, 0, 0)),
        ("a{3}", (2, 0, 0)),
        ("(ab){2,5}c", (8, 1, 0)),
        ("((a{10}){10}){10}", (999, 0, 0)),
        ("a?b*(c|d)", (0, 2, 1)),
        (r"\{5\}[{5}]", (0, 0, 0)),
        ("){3", (0, 0, 0)),
    ],
)
def test_repetitions_are_written_out(pattern: str, counts: tuple[int, int, int]) -> None:
    assert written_out(pattern) == counts
