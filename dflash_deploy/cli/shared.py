"""The options that any command accepts, before it or behind it: the deployment directory, JSON, how much is printed.

They are declared once. A command that needs the value of one has a parameter of its name, without a declaration:
`directory`, `as_json`, `json_stream`.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.main import get_command

from dflash_deploy.errors import BadInput, NoDeployment

if TYPE_CHECKING:
    from inspect import Signature

    from dflash_deploy.cli.shown import About

VARIABLE = "DFLASH_DIR"  # the variable of the environment that names a deployment directory

HERE = Path()
MOST = 3  # deployments that a hint names


def _deployments(incomplete: str) -> list[str]:
    # the other options import what `--help` does not need
    from dflash_deploy.cli.options import deployments

    return deployments(incomplete)


def _remember(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
    """Keep an option that was given, wherever it is: the last one counts."""
    if value:
        context.find_root().ensure_object(dict)[parameter.name] = value
    return value


def _option(*names: str, **more: Any) -> Any:
    return typer.Option(*names, callback=_remember, expose_value=False, show_default=False, **more)


Directory = Annotated[
    Path | None,
    _option(
        "--dir",
        help="The deployment directory; else this one, that of DFLASH_DIR, or one below ~/dflash.",
        file_okay=False,
        autocompletion=_deployments,
    ),
]
AsJson = Annotated[bool, _option("--json", help="Print one JSON document on standard output.")]
JsonStream = Annotated[
    bool, _option("--json-stream", help="Print each step of progress as a line of JSON, and the document as the last.")
]

Quiet = Annotated[bool, _option("--quiet", "-q", help="Print results and errors only, no notes and no progress.")]
Verbose = Annotated[bool, _option("--verbose", "-v", help="Also print each program that is started, and each request.")]


def declared(
    directory: Directory = None,
    as_json: AsJson = False,
    json_stream: JsonStream = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Declare the options, for a command to take them over."""


NAMES = tuple(inspect.signature(declared).parameters)

OF_EACH = ("quiet", "verbose")  # options that every command has, without a parameter for them


@functools.cache
def shared_options() -> Mapping[str, Any]:
    """The options as Typer parses them, by the name of the parameter."""
    app = typer.Typer(add_completion=False)
    app.command()(declared)
    return {str(option.name): option for option in get_command(app).params}


def taken(function: Callable[..., Any], *, json: bool) -> tuple[str, ...]:
    """The names of the shared options of a command, which its function may take; `json` says whether it has --json."""
    parameters = inspect.signature(function).parameters
    return tuple(name for name in NAMES if name in (*parameters, *OF_EACH) or (json and name == "as_json"))


# The parameter with which Typer hands over the context of the call.
CONTEXT = inspect.Parameter("shared", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)


def without_them(function: Callable[..., Any]) -> Signature:
    """The signature of a function as Typer reads it: the context in place of the shared options."""
    signature = inspect.signature(function, eval_str=True)
    own = (one for one in signature.parameters.values() if one.name not in NAMES)
    return signature.replace(parameters=[*own, CONTEXT])


def given(context: typer.Context) -> Mapping[str, Any]:
    """The shared options of this call that were given, by name."""
    return context.find_root().obj or {}


def values(function: Callable[..., Any], about: About, context: typer.Context) -> dict[str, Any]:
    """What a function gets of the shared options. Raises BadInput for one that its command does not have."""
    known, parameters = given(context), inspect.signature(function).parameters
    for name in known.keys() - set(about.shared):
        option = shared_options()[name].opts[0]
        raise BadInput(f"`{about.name}` has no {option}", hint=f"leave {option} out")
    found: dict[str, Any] = {name: known.get(name, False) for name in NAMES if name in parameters}
    if "directory" in found:
        # with a default of its own, the command chooses a directory
        chooses = parameters["directory"].default is None
        place = known.get("directory")
        if place is not None and not chooses:
            place = _by_name(place)
        found["directory"] = place or (_named() if chooses else _chosen(about))
    return found


def _by_name(place: Path) -> Path:
    """The deployment below `~/dflash` with this name, if nothing here has it; else the place itself."""
    from dflash_deploy.deployment.directory import deployments_at_home

    named = next((one for one in deployments_at_home() if one.name == str(place)), None)
    return place if named is None or place.exists() else named


def _named() -> Path | None:
    value = os.environ.get(VARIABLE)
    return Path(value) if value else None


def _chosen(about: About) -> Path:
    """The deployment of this directory, else that of DFLASH_DIR, else the one below `~/dflash` that was used last.

    Raises NoDeployment if a command that changes something would choose one of several, and cannot ask.
    """
    from dflash_deploy.deployment.directory import Deployment, deployments_at_home
    from dflash_deploy.deployment.files import STATE

    if (HERE / STATE).exists() or Deployment(HERE).exists():
        return HERE
    if (named := _named()) is not None:
        return named
    found = deployments_at_home()
    if len(found) > 1 and about.changes:
        from dflash_deploy.cli.options import is_asked_on_terminal

        if not is_asked_on_terminal():
            said = f"{len(found)} deployments below ~/dflash, and none here"
            options = " or ".join(f"`dflash-deploy {about.name} --dir {quote(place.name)}`" for place in found[:MOST])
            raise NoDeployment(said, hint=f"name one: {options}")
        typer.confirm(f"{about.name} {found[0]}?", abort=True, err=True)
    return found[0] if found else HERE


def place_of_new(directory: Path | None, *, force: bool = False) -> Path | None:
    """The directory for a new deployment; `None` is one in `~/dflash`. Raises BadInput in a clone of this project."""
    chosen = directory or _here(force=force)
    if chosen is not None:
        _refuse_source(chosen)
    return chosen


def _here(*, force: bool) -> Path | None:
    """The current directory; `None` if it has something else than a deployment."""
    from dflash_deploy.deployment.directory import Deployment

    if force or (HERE / ".dflash").exists() or Deployment(HERE).exists():
        return HERE
    with suppress(OSError):
        if any(not entry.name.startswith(".") or entry.name == ".env" for entry in HERE.iterdir()):
            return None
    return HERE


def _refuse_source(directory: Path) -> None:
    """Raise BadInput in a clone of this project: `git status` would list the deployment, and its key, from then on."""
    if (directory / "dflash_deploy" / "cli" / "init.py").is_file():
        raise BadInput(
            f"{directory.absolute()} is the source of dflash-deploy",
            hint="name a directory for the deployment: `dflash-deploy init --dir ~/dflash/demo`",
        )
