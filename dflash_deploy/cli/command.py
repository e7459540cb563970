"""What a command is: a function that returns a Report. `--help` imports this and the options, and none of the work."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec

if TYPE_CHECKING:
    from pathlib import Path

    from dflash_deploy.cli.display import Terminal
    from dflash_deploy.cli.shown import Report

P = ParamSpec("P")


def command(function: Callable[P, Report]) -> Callable[P, None]:
    """Make a command from a function that returns a Report: print it, and exit with the right code."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        from dflash_deploy.cli.report import run_command  # noqa: PLC0415 - --help prints no report

        run_command(function, *args, **kwargs)

    return run


def terminal(*, json_stream: bool = False, results_on_stdout: bool = False) -> Terminal:
    """The reporter of the command line; the parameters are those of `Terminal`."""
    from dflash_deploy.cli.display import Terminal  # noqa: PLC0415 - --help shows no progress

    return Terminal(json_stream=json_stream, results_on_stdout=results_on_stdout)


def option_of(directory: Path) -> str:
    """Return what the next command needs to work on the same deployment: ` --dir DIRECTORY`, or nothing."""
    from dflash_deploy.deployment.nearby import there  # noqa: PLC0415 - --help names no directory

    return there(directory)


def note_if_new(directory: Path) -> None:
    """Say on standard error if a directory does not exist: its name may be mistyped.

    The command's operation comes first: it refuses a path that cannot be used.
    """
    if not directory.exists():
        terminal().note(f"note: {directory} does not exist: this is about a new deployment there")
