"""One place turns what a verb returns into text for people or one JSON document, and errors into exit codes."""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec

import typer

from dflash_deploy.errors import DeployError, ExitCode, Interrupted

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from dflash_deploy.plan import Finding
    from dflash_deploy.redact import Redactor

P = ParamSpec("P")

Redact = Callable[[str], str]
"""Takes text and returns it without secrets."""

SCHEMA = 1

PIPE_WIDTH = 240
"""Columns of a table that nobody looks at."""

Directory = Annotated[Path, typer.Option("--dir", help="The deployment directory.", file_okay=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
JsonStream = Annotated[
    bool,
    typer.Option("--json-stream", help="Print each step of progress as a line of JSON, and the document as the last."),
]
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
        as_json, in_lines = bool(kwargs.get("as_json")), bool(kwargs.get("json_stream"))
        redactors: list[Redactor] = []
        try:
            redactors.append(_redactor(kwargs.get("directory")))
            report = _outcome(command, *args, **kwargs)
        except KeyboardInterrupt:
            report = Report(failure=Interrupted())
        except BrokenPipeError:
            _be_quiet()
            raise typer.Exit(ExitCode.DONE) from None
        # a verb may write another key: neither the one before nor the one after is shown
        redactors.append(_redactor(kwargs.get("directory")))
        redact = _one_after_the_other(redactors)
        if as_json or in_lines:
            document = _document(command.__name__.replace("_", " "), report)
            print_json({"event": "result", **document} if in_lines else document, redact, in_lines=in_lines)
        else:
            _show(report.shown, redact)
        _explain(report, redact)
        raise typer.Exit(report.failure.exit_code if report.failure else ExitCode.DONE)

    return run


def document_of(shown: Callable[..., None], directory: Path) -> str:
    """The JSON document that a verb would print of a deployment, a failure included."""
    command: Callable[..., Report] = inspect.unwrap(shown)
    report = _outcome(command, directory=directory, as_json=True)
    return _as_text(_document(command.__name__, report), _redactor(directory))


def _outcome(command: Callable[P, Report], *args: P.args, **kwargs: P.kwargs) -> Report:
    """What a verb returns, or the failure that it ended with."""
    try:
        return command(*args, **kwargs)
    except BrokenPipeError:
        raise
    except DeployError as error:
        return Report(failure=error)
    except Exception as problem:  # the last line of defence: nobody should meet a traceback
        return Report(failure=_unexpected(problem))


def console(*, stderr: bool = False) -> Console:
    """A console that is plain where nobody looks: in a pipe, with NO_COLOR, on a dumb terminal."""
    from rich.console import Console

    screen = Console(stderr=stderr, highlight=False, soft_wrap=True, emoji=False)
    if not screen.is_terminal and "COLUMNS" not in os.environ:
        # whatever reads a pipe has no edge that a table could be cut at
        screen.width = PIPE_WIDTH
    return screen


def table(*columns: str) -> Table:
    """A table without frames, whose cells can be copied."""
    from rich import box
    from rich.table import Table

    drawn = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    # names and figures are for copying; the last column is text
    for column in drawn.columns[:-1]:
        column.no_wrap = True
    return drawn


def note(text: str) -> None:
    """A line for people while something runs; never on standard output."""
    console(stderr=True).print(text, markup=False)


def _unexpected(problem: Exception) -> DeployError:
    return DeployError(
        f"unexpected: {type(problem).__name__}: {problem}",
        hint="this is a defect: DFLASH_DEBUG=1 shows where, please report it",
        # shown like all else, and not raised: what Python itself prints is not redacted
        detail=traceback.format_exc() if os.environ.get("DFLASH_DEBUG") else "",
    )


def _one_after_the_other(redactors: Iterable[Redactor]) -> Redact:
    return lambda text: functools.reduce(lambda shown, redact: redact(shown), redactors, text)


def _redactor(directory: object) -> Redactor:
    """Whatever a verb shows passes through this, so that no path to the terminal can be forgotten."""
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.redact import Redactor

    deployment = Deployment(directory if isinstance(directory, Path) else HERE)
    try:
        return deployment.redact
    except (OSError, DeployError):
        return Redactor()


def print_json(document: Mapping[str, object], redact: Redact, *, in_lines: bool) -> None:
    """A document on standard output, without secrets. `in_lines`: in one line, which leaves at once.

    Whoever read the lines may go away; what is under way is not to end for that.
    """
    try:
        sys.stdout.write(_as_text(document, redact, indent=None if in_lines else 2) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        if not in_lines:
            raise
        _be_quiet()


def _be_quiet() -> None:
    """Whoever read the output has enough."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _document(command: str, report: Report) -> dict[str, object]:
    failure = report.failure
    error = failure and {"code": int(failure.exit_code), "message": failure.message, "hint": failure.hint}
    return {
        "schema": SCHEMA,
        "command": command,
        "status": "failed" if failure else "ok",
        "data": report.data,
        "findings": [asdict(finding) for finding in report.findings],
        "error": error,
    }


def _as_text(document: Mapping[str, object], redact: Redact, indent: int | None = 2) -> str:
    # before it is written down: JSON writes some characters differently, and a secret with one would not be found
    return json.dumps(_redacted(document, redact), indent=indent, ensure_ascii=False)


def _redacted(node: object, redact: Redact) -> object:
    """The same data, every text in it without secrets."""
    if isinstance(node, Mapping):
        return {key: _redacted(value, redact) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_redacted(value, redact) for value in node]
    return redact(node) if isinstance(node, str) else node


def _show(items: Iterable[RenderableType], redact: Redact) -> None:
    """What people asked for, on standard output."""
    out = console()
    for item in items:
        with out.capture() as drawn:
            out.print(item, markup=False)
        sys.stdout.write(redact(drawn.get()))


def _explain(report: Report, redact: Redact) -> None:
    """Findings and the error, on standard error, where they do not disturb a program that reads the output."""
    err = console(stderr=True)
    for finding in report.findings:
        err.print(redact(f"{finding.severity}: {finding.message}"), markup=False, style=_STYLES[finding.severity])
        if finding.why:
            err.print(redact(f"  why: {finding.why}"), markup=False, style="dim")
        err.print(redact(f"  {finding.fix}"), markup=False)
    if report.failure is not None:
        if report.failure.detail:
            err.print(redact(report.failure.detail), markup=False, style="dim")
        err.print(redact(f"error: {report.failure.message}"), markup=False, style="bold red")
        err.print(redact(f"  hint: {report.failure.hint}"), markup=False)


_STYLES = {"error": "red", "warning": "yellow", "note": "cyan"}
