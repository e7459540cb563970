"""A setting is named once, as an attribute of `Settings`: no other string of the program holds its name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from dflash_deploy.serve.settings import Settings
from tests.support.trees import nodes_of

PACKAGE = Path(__file__).resolve().parents[3] / "dflash_deploy"

NAME = re.compile(rf"(?<!\w)({'|'.join(field.name for field in Settings.fields())})(?!\w)")


def named_in(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """The line and name of every setting that a string of a program holds. Docstrings may name settings."""
    docstrings = {
        id(statement.value)
        for node in nodes
        for statement in (getattr(node, "body", None) if isinstance(getattr(node, "body", None), list) else None) or ()
        if isinstance(statement, ast.Expr)
    }
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            for found in NAME.finditer(node.value):
                yield node.lineno, found[0]


def test_a_setting_is_an_attribute_and_not_a_string() -> None:
    found = [
        f"{file.relative_to(PACKAGE.parent)}:{line}: write Settings.{name.lower()} instead of {name!r}"
        for file in sorted(PACKAGE.rglob("*.py"))
        for line, name in named_in(nodes_of(file))
    ]
    assert not found, "\n".join(found)


def test_names_are_found_in_every_kind_of_string() -> None:
    one, other = Settings.max_model_len.name, Settings.kv_cache_dtype.name
    source = f'"""{one} in a docstring."""\nname = "{one}"\nsaid = f"set {other}={{name}}"\n'
    assert list(named_in([*ast.walk(ast.parse(source))])) == [(2, one), (3, other)]
    others = ast.parse("Settings.max_model_len\nother = 'DFLASH_KV_CACHE_DTYPES and NODES_X'\n")
    assert not list(named_in([*ast.walk(others)]))
