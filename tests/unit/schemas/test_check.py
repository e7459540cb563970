"""The check of every document that a test gets from the command line: it can fail, and no test gets around it."""

import ast
import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from dflash_deploy.errors import ExitCode
from tests.support.cli import Ran
from tests.support.schemas import checked_output, closed, data_problems, output_problems, problems, seen

DOWN: dict[str, Any] = {
    "schema": 1,
    "command": "down",
    "status": "ok",
    "data": {"stopped": True, "runtime": "native"},
    "findings": [],
    "error": None,
}
FAILED = DOWN | {"status": "failed", "data": {}, "error": {"code": 3, "message": "no", "hint": "yes"}}
PROGRESS: dict[str, Any] = {
    "event": "progress",
    "phase": "loading the target",
    "elapsed": 1.5,
    "last_line": "",
    "done": 1,
    "total": 2,
    "in_phase": 0.5,
    "usual": None,
    "usual_in_phase": 40.0,
}


def changed(**data: object) -> dict[str, Any]:
    document = deepcopy(DOWN)
    document["data"] = {name: value for name, value in (DOWN["data"] | data).items() if value is not ...}
    return document


def test_a_right_document_has_no_problems() -> None:
    assert [problems(one) for one in (DOWN, FAILED, PROGRESS)] == [[], [], []]
    assert data_problems("down", DOWN["data"]) == []


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (changed(pid=7), "'pid' was unexpected"),
        (changed(stopped="yes"), "'yes' is not of type 'boolean'"),
        (changed(stopped=...), "'stopped' is a required property"),
        (changed(runtime="podman"), "'podman' is not one of ['compose', 'native']"),
        (DOWN | {"took": 1}, "'took' was unexpected"),
        (DOWN | {"schema": 2}, "1 was expected"),
        (DOWN | {"status": "failed"}, "is not of type 'object'"),
        (DOWN | {"error": FAILED["error"]}, "is not of type 'null'"),
        (DOWN | {"data": {}}, "'stopped' is a required property"),
        (DOWN | {"event": "result"}, "'event' was unexpected"),
        (DOWN | {"findings": [{"id": "x"}]}, "'severity' is a required property"),
        (FAILED | {"error": FAILED["error"] | {"code": 0}}, "0 is not one of"),
        (DOWN | {"command": "dwon"}, "neither a command nor a line of progress"),
        ([DOWN], "neither a command nor a line of progress"),
        (PROGRESS | {"percent": 50}, "'percent' was unexpected"),
    ],
)
def test_a_wrong_document_is_found(document: object, says: str) -> None:
    found = "\n".join(problems(document))
    assert says in found


@pytest.mark.parametrize(
    ("args", "code", "out", "right"),
    [
        (("down", "--json"), ExitCode.DONE, json.dumps(DOWN), True),
        (("down", "--json"), ExitCode.DONE, json.dumps(changed(pid=7)), False),
        (("down", "--json"), ExitCode.DONE, "", False),
        (("down", "--json", "--banana"), ExitCode.USAGE, "", True),
        (("down", "--json"), ExitCode.DONE, f"stopped\n{json.dumps(DOWN)}", False),
        (("down",), ExitCode.DONE, "stopped", True),
        (("up", "--json-stream"), ExitCode.DONE, json.dumps(PROGRESS), False),
        (("up", "--json-stream"), ExitCode.DONE, "\n", False),
    ],
)
def test_a_command_that_was_run_is_checked(args: tuple[str, ...], code: ExitCode, out: str, right: bool) -> None:
    assert (not list(output_problems(args, code, out))) is right
    if right:
        assert Ran(args, code, out, "").args == args
        return
    for check in (lambda: Ran(args, code, out, ""), lambda: checked_output(args, code, out)):
        with pytest.raises(AssertionError, match=f"^{' '.join(args)}:\n"):
            check()


def test_what_a_document_has_is_seen_and_the_rest_is_listed() -> None:
    schema = closed("pull")
    seen_of = {"pull": set(seen._walk(schema, schema, {"data": {"wrong": {"a": "b"}, "moved": None}}, ""))}
    assert seen_of["pull"] == {"data", "data.wrong", "data.wrong.*"}
    left = seen.unseen("pull", schema, seen_of)
    assert {"data.moved", "data.models", "error", "status"} <= set(left)
    assert not {"data.wrong", "data.moved.*", "data.models[].role", "error.code"} & set(left)


TESTS = Path(__file__).parents[2]
STARTS = re.compile(r"'dflash_deploy'|CliRunner\(|\{COMMAND\}")
CHECKS = re.compile(r"\b(Ran\(|checked_output\(|output_problems\(|problems\()")


def starts_for_a_document(text: str) -> bool:
    """Whether an expression starts the command itself, not through tests/support/cli, and asks for JSON."""
    written = (
        ast.unparse(node)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call | ast.List | ast.Tuple | ast.JoinedStr)
    )
    return any("--json" in one and STARTS.search(one) for one in written)


def test_what_starts_the_command_and_asks_for_json_checks_what_it_gets() -> None:
    starting = {
        str(file.relative_to(TESTS)): text
        for file in TESTS.rglob("*.py")
        for text in [file.read_text(encoding="utf-8")]
        if "--json" in text and starts_for_a_document(text)
    }
    assert set(starting) >= {"docker/test_faults.py", "cli/test_streams.py"}
    assert [name for name, text in starting.items() if not CHECKS.search(text)] == []
