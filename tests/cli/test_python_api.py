"""The Python API: its names, what they document, and the program that the manual shows."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import dflash_deploy.operations
from dflash_deploy import operations
from tests.support.api_example import MANUAL, program

MODULES = {path.stem for path in Path(dflash_deploy.operations.__file__).parent.glob("*.py")}


@pytest.mark.parametrize("name", operations.__all__)
def test_a_name_of_the_api_is_there_and_documented(name: str) -> None:
    found = getattr(operations, name)
    assert inspect.getdoc(found)
    # a module of that name would hide it as soon as it is imported
    assert name not in MODULES


def test_a_name_that_is_none_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'launch'"):
        _ = operations.launch  # type: ignore[attr-defined]


def test_an_operation_on_a_deployment_names_the_errors_it_raises() -> None:
    operating = [getattr(operations, name) for name in operations.__all__ if name[0].islower()]
    on_deployments = [one for one in operating if "directory" in inspect.signature(one).parameters]
    silent = {one.__name__ for one in on_deployments if "Raises" not in (inspect.getdoc(one) or "")}
    # doctor turns every refusal into a check
    assert silent == {"doctor"}


def test_the_manual_uses_and_lists_names_of_the_api() -> None:
    tree = ast.parse(program())
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "operations"
    }
    assert used <= set(operations.__all__)
    listed = MANUAL.read_text(encoding="utf-8").partition("## Operations")[2]
    named = {name for code in re.findall(r"`([a-z_]+)(?:\(.*?\))?`", listed) for name in [code]}
    missing = {name for name in operations.__all__ if name[0].islower()} - named
    assert missing == set()
