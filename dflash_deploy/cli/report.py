"""One place turns what a verb returns into text for people or one JSON document, and errors into exit codes."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec

import typer

from dflash_deploy.errors import DeployError, ExitCode

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from dflash_deploy.plan import Finding
    from dflash_deploy.redact import Redactor

P = ParamSpec("P")

SCHEMA = 1

Directory = Annotated[Path, typer.Option("--dir", help="The deployment directory.", file_okay=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
HERE = Path()


@dataclass(frozen=True)
class Report:
    """What a verb returns: `data` for programs, `shown` for people, findings for both."""

    data: Mapping[str, object] = field(default_factory=dict)
    shown: tuple[RenderableType, ...] = ()
    findings: tuple[Finding, ...] = ()
    failure: DeployError | None = None


def verb(command: Callable[P, Report]) -> Callable[P, None]:
    """Make a command of a function that returns a Report: print it, and exit with the right code."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        as_json = bool(kwargs.get("as_json"))
        try:
            report = command(*args, **kwargs)
        except DeployError as error:
            report = Report(failure=error)
        except KeyboardInterrupt:
            print("interrupted; the same command goes on from here", file=sys.stderr)
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        except Exception as problem:  # the last line of defence: nobody should meet a traceback
            if os.environ.get("DFLASH_DEBUG"):
                raise
            report = Report(failure=_unexpected(problem))
        redact = _redactor(kwargs.get("directory"))
        if as_json:
            sys.stdout.write(redact(_document(command.__name__, report)) + "\n")
        else:
            _print(report, redact)
        raise typer.Exit(report.failure.exit_code if report.failure else ExitCode.DONE)

    return run


def console(*, stderr: bool = False) -> Console:
    """A console that is plain where nobody looks: in a pipe, with NO_COLOR, on a dumb terminal."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=True)


def note(text: str) -> None:
    """A line for people while something runs; never on standard output."""
    console(stderr=True).print(text, markup=False)


def _unexpected(problem: Exception) -> DeployError:
    return DeployError(
        f"unexpected: {type(problem).__name__}: {problem}",
        hint="this is a defect: DFLASH_DEBUG=1 shows where, please report it",
    )


def _redactor(directory: object) -> Redactor:
    """Whatever a verb shows passes through this, so that no path to the terminal can be forgotten."""
    from dflash_deploy.project import Deployment
    from dflash_deploy.redact import Redactor

    deployment = Deployment(directory if isinstance(directory, Path) else HERE)
    try:
        return deployment.redact
    except (OSError, UnicodeDecodeError):
        return Redactor()


def _document(command: str, report: Report) -> str:
    failure = report.failure
    error = failure and {"code": int(failure.exit_code), "message": failure.message, "hint": failure.hint}
    document = {
        "schema": SCHEMA,
        "command": command,
        "status": "failed" if failure else "ok",
        "data": report.data,
        "findings": [asdict(finding) for finding in report.findings],
        "error": error,
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def _print(report: Report, redact: Redactor) -> None:
    out, err = console(), console(stderr=True)
    for item in report.shown:
        if isinstance(item, str):
            out.print(redact(item), markup=False)
        else:
            out.print(item)
    for finding in report.findings:
        err.print(redact(f"{finding.severity}: {finding.message}"), markup=False, style=_STYLES[finding.severity])
        err.print(redact(f"  {finding.fix}"), markup=False)
    if report.failure is not None:
        if report.failure.detail:
            err.print(redact(report.failure.detail), markup=False, style="dim")
        err.print(redact(f"error: {report.failure.message}"), markup=False, style="bold red")
        err.print(redact(f"  hint: {report.failure.hint}"), markup=False)


_STYLES = {"error": "red", "warning": "yellow", "note": "cyan"}
