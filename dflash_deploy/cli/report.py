"""One place turns what a command returns into text for people or one JSON document, and errors into exit codes."""

from __future__ import annotations

import codecs
import errno
import functools
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ParamSpec

import typer
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

from dflash_deploy.cli.options import HERE
from dflash_deploy.cli.streams import lost_output
from dflash_deploy.cli.visible import Escape, shortened, visible_json
from dflash_deploy.deployment import Deployment
from dflash_deploy.errors import DeployError, ExitCode, Interrupted, PreflightRefused
from dflash_deploy.operations.document import document, redacted
from dflash_deploy.plan import Finding
from dflash_deploy.redact import Redact, Redactor, Secret

P = ParamSpec("P")

PIPE_WIDTH = 240
"""Columns of a table that goes into a pipe."""

LONGEST_DETAIL = 100_000
"""Characters of an error's detail, such as the end of a log."""

CHANGING = frozenset(
    {
        "init",
        "pull",
        "render",
        "up",
        "down",
        "restart",
        "rollback",
        "tune",
        "keys_rotate",
        "image_build",
        "image_digest",
    }
)
"""Commands that change something: they succeeded even if their output is lost."""

_STYLES = {"error": "red", "warning": "yellow", "note": "cyan"}


@dataclass(frozen=True)
class Report:
    """What a command returns: `data` for programs, `shown` for people, findings for both."""

    data: Mapping[str, object] = field(default_factory=dict)
    shown: tuple[RenderableType, ...] = ()
    findings: tuple[Finding, ...] = ()
    failure: DeployError | None = None


def command(function: Callable[P, Report]) -> Callable[P, None]:
    """Make a command from a function that returns a Report: print it, and exit with the right code."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        as_json, in_lines = bool(kwargs.get("as_json")), bool(kwargs.get("json_stream"))
        known: list[Secret] = []
        try:
            known += _secrets(kwargs.get("directory"))
            report = _outcome(function, *args, **kwargs)
        except KeyboardInterrupt:
            report = Report(failure=Interrupted())
        except BrokenPipeError:
            _be_quiet()
            raise typer.Exit(ExitCode.DONE) from None
        report = _cut(report)
        # a command may replace the key: neither the old one nor the new one is shown
        redact = Redactor([*known, *_secrets(kwargs.get("directory"))])
        if as_json or in_lines:
            name = function.__name__.replace("_", " ")
            whole = document(name, report.data, report.findings, report.failure)
            print_json({"event": "result", **whole} if in_lines else whole, redact, in_lines=in_lines)
        else:
            _show(report.shown, redact)
        report = _delivered(report, function.__name__)
        _explain(report, redact)
        raise typer.Exit(report.failure.exit_code if report.failure else ExitCode.DONE)

    return run


def _cut(report: Report) -> Report:
    """The report, with an error that fits on a screen: it may quote a value of any length."""
    if report.failure is not None:
        report.failure.message = shortened(report.failure.message)
        report.failure.hint = shortened(report.failure.hint)
        report.failure.detail = shortened(report.failure.detail, LONGEST_DETAIL)
    return report


def _delivered(report: Report, name: str) -> Report:
    """The report as it ends: that the output was lost is a failure, unless the command changed something.

    A reader that has ended, such as `head`, wanted no more.
    """
    problem = lost_output()
    if problem is None or problem.errno == errno.EPIPE or report.failure is not None:
        return report
    said = f"standard output cannot be written: {problem.strerror}"
    if name in CHANGING:
        note(f"warning: {said}; the command itself succeeded")
        return report
    return replace(report, failure=PreflightRefused(said, hint="free disk space (`df -h`), or write it elsewhere"))


def console(*, stderr: bool = False) -> Console:
    """A console that prints plain text into a pipe, with NO_COLOR, and on a dumb terminal."""
    screen = Console(stderr=stderr, highlight=False, soft_wrap=True, emoji=False)
    screen.push_render_hook(Escape())
    if not screen.is_terminal and "COLUMNS" not in os.environ:
        # a program that reads a pipe has no edge to cut a table at
        screen.width = PIPE_WIDTH
    return screen


def table(*columns: str) -> Table:
    """A table without frames, whose cells can be copied."""
    drawn = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    # names and figures are for copying; the last column is text
    for column in drawn.columns[:-1]:
        column.no_wrap = True
    return drawn


def note(text: str) -> None:
    """A line for people while something runs; never on standard output."""
    console(stderr=True).print(text, markup=False)


def print_json(document: Mapping[str, object], redact: Redact, *, in_lines: bool) -> None:
    """A document on standard output, without secrets. `in_lines`: on one line, flushed at once.

    The reader of the lines may end first; that does not end the command.
    """
    # an escape of another encoding's error handler would not be JSON
    plain = codecs.lookup(sys.stdout.encoding or "utf-8").name != "utf-8"
    text = json.dumps(redacted(document, redact), indent=None if in_lines else 2, ensure_ascii=plain)
    text = visible_json(text)
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        if not in_lines:
            raise
        _be_quiet()


def _outcome(function: Callable[P, Report], *args: P.args, **kwargs: P.kwargs) -> Report:
    """What a command returns, or the failure that it ended with."""
    try:
        return function(*args, **kwargs)
    except BrokenPipeError:
        raise
    except DeployError as error:
        return Report(failure=error)
    except OSError as problem:
        return Report(failure=_system(problem) if problem.errno in _CONDITIONS else _unexpected(problem))
    except Exception as problem:  # the last line of defence: users see no traceback
        return Report(failure=_unexpected(problem))


_CONDITIONS: Mapping[int, str] = {
    errno.ENOSPC: "free disk space (`df -h`), then run the same command again",
    errno.EDQUOT: "free disk space within your quota, then run the same command again",
    errno.EFBIG: "raise the limit of a file's size (`ulimit -f`)",
    errno.EROFS: "the file system is mounted read-only: use another directory",
    errno.EACCES: "run the command as the owner of the file, or check the permissions with `ls -l`",
    errno.EPERM: "run the command as the owner of the file, or check the permissions with `ls -l`",
    errno.EIO: "check the disk (`dmesg | tail`)",
    errno.ENAMETOOLONG: "use a shorter path",
    errno.EMFILE: "raise the limit of open files with `ulimit -n`",
    errno.ENFILE: "close other programs: the system has too many open files",
}
"""Errors that are a condition of the machine and not a defect, with what helps."""


def _system(problem: OSError) -> DeployError:
    place = f"{problem.filename}: " if problem.filename else ""
    return PreflightRefused(f"{place}{problem.strerror}", hint=_CONDITIONS[problem.errno or 0])


def _unexpected(problem: Exception) -> DeployError:
    return DeployError(
        f"unexpected: {type(problem).__name__}: {problem}",
        hint="this is a defect: DFLASH_DEBUG=1 shows where, please report it",
        # shown like the rest, and not raised: what Python itself prints is not redacted
        detail=traceback.format_exc() if os.environ.get("DFLASH_DEBUG") else "",
    )


def _secrets(directory: object) -> list[Secret]:
    """The secrets of the deployment that a command works on."""
    try:
        return list(Deployment(directory if isinstance(directory, Path) else HERE).known_secrets)
    except (OSError, DeployError):
        return []


def _be_quiet() -> None:
    """Discard further output: its reader has ended."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show(items: Iterable[RenderableType], redact: Redact) -> None:
    """The result for people, on standard output."""
    out = console()
    for item in items:
        with out.capture() as drawn:
            out.print(item, markup=False)
        sys.stdout.write(redact(drawn.get()))


def _explain(report: Report, redact: Redact) -> None:
    """Findings and the error, on standard error: they do not disturb a program that reads the output."""
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
