"""The page of rules: each one with what it finds, from its docstring, and the severities of its finding."""

from __future__ import annotations

import ast
import inspect
import textwrap

from dflash_deploy.rules.kinds import Rule
from dflash_deploy.rules.table import RULES
from tools.reference.markdown import BUILT, code, joined, table

_HEAD = f"""# Rules

`plan`, `init` and `up` check every plan against these {len(RULES)} rules. A finding says what was found, why it
matters, what to do, and the source of the fact. `up` refuses a plan with a finding of severity `error`, and shows
warnings.

{BUILT.format(source="`dflash_deploy/rules/`")}
"""


def page() -> str:
    """The whole page, a table for each module of rules."""
    rooms: dict[str, list[Rule]] = {}
    for rule in RULES:
        rooms.setdefault(rule.__module__.rpartition(".")[2], []).append(rule)
    parts = [_HEAD]
    for room, rules in rooms.items():
        rows = ((code(identifier(rule)), ", ".join(severities(rule)), _finds(rule)) for rule in rules)
        parts += [f"## {room.capitalize()}\n", *table(("id", "severity", "what it finds"), rows)]
    return joined(*parts)


def identifier(rule: Rule) -> str:
    """The id of the rule's findings."""
    return rule.__name__.replace("_", "-")


def severities(rule: Rule) -> list[str]:
    """The severities that its finding can have, as its source names them."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(rule)))
    values = [node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "severity"]
    chosen = {one.value for value in values for one in _results(value) if isinstance(one, ast.Constant)}
    return sorted(str(one) for one in chosen)


def _results(value: ast.expr) -> tuple[ast.expr, ...]:
    return (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,)


def _finds(rule: Rule) -> str:
    return (inspect.getdoc(rule) or "").partition("\n\n")[0]
