"""Usage errors: what is wrong with the arguments, with the value, safe to show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import typer
from typer.exceptions import TyperException

from dflash_deploy.cli.visible import quoted

_IN_WORDS: Mapping[str, Callable[[str, Any], str]] = {
    "int_parsing": lambda value, _: f"`{value}` is not a whole number",
    "float_parsing": lambda value, _: f"`{value}` is not a number",
    "less_than_equal": lambda value, limits: f"`{value}` is more than {limits['le']}",
    "greater_than_equal": lambda value, limits: f"`{value}` is less than {limits['ge']}",
}
"""What each kind of a refused value says; the kinds are those of pydantic, which reads the values for Typer."""

_PREFIX = "Value error, "
"""What pydantic writes before the words of others."""


def make_showable(problem: TyperException) -> None:
    """Word a usage error as all others are, in two lines.

    The arguments that it quotes have any length and any characters: escape and cut them. The help of a group that is
    called without a command is such an error too. It quotes nothing, and stays.
    """
    message = getattr(problem, "message", None)
    if isinstance(message, str) and type(problem).__name__ != "NoArgsIsHelpError":
        vars(problem)["message"] = quoted(_worded(problem) or message.removeprefix(_PREFIX))
        # Typer calls it without its file
        vars(problem)["show"] = lambda *_: _show(problem)


def _show(problem: TyperException) -> None:
    """Print a usage error on standard error."""
    said = problem.format_message()
    typer.echo(f"error: {said[:1].lower()}{said[1:]}", err=True)
    # an option without its value has no context
    context = getattr(problem, "ctx", None)
    typer.echo(f"  hint: `{context.command_path if context else 'dflash-deploy'} -h` shows what it accepts", err=True)


def _worded(problem: TyperException) -> str:
    """The value and what is wrong with it; empty if the cause is another one."""
    details = getattr(problem.__cause__, "errors", None)
    if details is None:
        return ""
    first = details(include_url=False)[0]
    worded = _IN_WORDS.get(first["type"])
    return worded(str(first["input"]), first.get("ctx", {})) if worded else ""
