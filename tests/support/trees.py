"""The syntax trees of Python files, each parsed once: several tests read all files of the package."""

import ast
from functools import cache
from pathlib import Path


@cache
def tree_of(file: Path) -> ast.Module:
    """The tree of a file. Nobody changes it."""
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def nodes_of(file: Path) -> tuple[ast.AST, ...]:
    """All its nodes, as ast.walk gives them."""
    return tuple(ast.walk(tree_of(file)))
