"""Makes a command from a function that returns a Report, and words its usage errors.

`--help` imports this module and the options, and none of the work. A usage error says what is wrong with the arguments,
with the value, safe to show.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from shlex import quote
from typing import TYPE_CHECKING, Any

import typer
from typer.exceptions import TyperException

from dflash_deploy.cli.shared import taken, without_them
from dflash_deploy.cli.shown import About, quoted
from dflash_deploy.errors import DeployError
from dflash_deploy.gone import GONE

if TYPE_CHECKING:
    from pathlib import Path

    from dflash_deploy.cli.display import Terminal
    from dflash_deploy.cli.shown import Report


def command(
    *, examples: tuple[str, ...] = (), changes: bool = False, starts_over: bool = False, json: bool = True
) -> Callable[[Callable[..., Report]], Callable[..., None]]:
    """Make a command from a function that returns a Report: print it, and exit with the right code.

    `json`: it has --json, whether its function takes `as_json` or not.
    """

    def declared(function: Callable[..., Report]) -> Callable[..., None]:
        name = function.__name__.replace("_", " ")
        about = About(name, examples, changes, starts_over, taken(function, json=json))

        @functools.wraps(function)
        def run(*args: Any, shared: typer.Context, **kwargs: Any) -> None:
            from dflash_deploy.cli.report import run_command

            run_command(function, about, shared, *args, **kwargs)

        vars(run)["__signature__"] = without_them(function)
        vars(run)["about"] = about
        return run

    return declared


def examples(*shown: str) -> str:
    """The end of a help text. `\\b` keeps the lines as they are."""
    return "\n".join(("\b", "Examples:", *(f"  dflash-deploy {one}" for one in shown)))


def terminal(*, json_stream: bool = False, results_on_stdout: bool = False) -> Terminal:
    """The reporter of the command line; the parameters are those of `Terminal`."""
    from dflash_deploy.cli.display import Terminal

    return Terminal(json_stream=json_stream, results_on_stdout=results_on_stdout)


def option_of(directory: Path) -> str:
    """Return what the next command needs to work on the same deployment: ` --dir DIRECTORY`, or nothing."""
    from dflash_deploy.deployment.directory import there

    return there(directory)


def note_if_new(directory: Path) -> None:
    """Say on standard error if a directory does not exist: its name may be mistyped.

    The command's operation comes first: it refuses a path that cannot be used.
    """
    if not directory.exists():
        terminal().note(f"note: {directory} does not exist: this is about a new deployment there")


# What each kind of a refused value says; the kinds are those of pydantic, which reads the values for Typer.
_IN_WORDS: Mapping[str, Callable[[str, Any], str]] = {
    "int_parsing": lambda value, _: f"`{value}` is not a whole number",
    "float_parsing": lambda value, _: f"`{value}` is not a number",
    "less_than_equal": lambda value, limits: f"`{value}` is more than {limits['le']}",
    "greater_than_equal": lambda value, limits: f"`{value}` is less than {limits['ge']}",
}

_PREFIX = "Value error, "  # what pydantic writes before the words of others


def make_showable(problem: TyperException) -> None:
    """Word a usage error as all others are, in two lines.

    The arguments that it quotes have any length and any characters: escape and cut them. The help of a group that is
    called without a command is such an error too. It quotes nothing, and stays.
    """
    message = getattr(problem, "message", None)
    if isinstance(message, str) and type(problem).__name__ != "NoArgsIsHelpError":
        vars(problem)["message"] = quoted(_worded(problem) or message.removeprefix(_PREFIX))
        # Typer calls it without its file
        vars(problem)["show"] = lambda *_: _show_usage(problem)


def _show_usage(problem: TyperException) -> None:
    """Print a usage error on standard error."""
    said = problem.format_message()
    typer.echo(f"error: {said[:1].lower()}{said[1:]}", err=True)
    # an option without its value has no context
    context = getattr(problem, "ctx", None)
    path = context.command_path if context else "dflash-deploy"
    # `python -m dflash_deploy` has three words
    below = path.removeprefix(context.find_root().command_path) if context else ""
    word = _unknown(problem, below)
    hint = _removed_by_hand() if word in BY_HAND else GONE.get(word) or f"`{path} -h` shows what it accepts"
    typer.echo(f"  hint: {hint}", err=True)


BY_HAND = ("rm", "remove", "uninstall")  # commands of other programs: this one removes no settings and no weights


def _removed_by_hand() -> str:
    """How to remove each deployment and this program, and where the weights are."""
    from dflash_deploy.deployment.directory import Deployment, deployments_at_home
    from dflash_deploy.serve.extras import uninstall_command
    from dflash_deploy.serve.settings import Settings

    weights = {"~/models"}
    for place in (found := deployments_at_home()):
        with suppress(DeployError):
            weights.add(Deployment(place).values.get(Settings.model_host_path.name) or "~/models")
    steps = [f"`dflash-deploy down --dir {quote(place.name)}`, `rm -r {quote(str(place))}`" for place in found]
    return "; ".join([*steps, f"weights are in {', '.join(sorted(weights))}", f"`{uninstall_command()}`"])


def _unknown(problem: TyperException, below: str) -> str:
    """The command or option that does not exist, as in `GONE`; empty for other errors. `below` is its group."""
    command = re.match(r"No such command '([\w-]+)'", str(getattr(problem, "message", "")))
    name = command[1] if command else getattr(problem, "option_name", None)
    return " ".join((*below.split(), name)) if name else ""


def _worded(problem: TyperException) -> str:
    """The value and what is wrong with it; empty if the cause is another one."""
    details = getattr(problem.__cause__, "errors", None)
    if details is None:
        return ""
    first = details(include_url=False)[0]
    worded = _IN_WORDS.get(first["type"])
    return worded(str(first["input"]), first.get("ctx", {})) if worded else ""
