"""One place turns what a command returns into text for people or one JSON document, and errors into exit codes."""

from __future__ import annotations

import codecs
import errno
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, ConsoleRenderable, Group, RenderableType, RenderHook, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from dflash_deploy.cli.defect import failure_of, report_of
from dflash_deploy.cli.shared import HERE, given, values
from dflash_deploy.cli.shown import About, Grid, Report, Shown, Styled, shortened, visible, visible_json
from dflash_deploy.cli.streams import lost_output
from dflash_deploy.deployment.directory import Deployment, there
from dflash_deploy.document import document, redacted
from dflash_deploy.errors import Defect, DeployError, ExitCode, Interrupted, NoDeployment, PreflightRefused
from dflash_deploy.redact import Redact, Redactor, Secret
from dflash_deploy.serve.extras import PROGRAM, run_command_here

if TYPE_CHECKING:
    from dflash_deploy.operations.here import Deployments


class Escape(RenderHook):
    """Escapes control characters in everything that a console prints. Its own styles and movements stay.

    Commands of this program are printed as one runs it here. With a `width`, lines of text end at words, and the next
    line begins below the last column of the first one.
    """

    def __init__(self, width: int | None = None) -> None:
        self._width = width

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Return renderables that render the same segments with escaped text."""
        return [_Escaped(self._folded(one)) for one in renderables]

    def _folded(self, one: ConsoleRenderable) -> ConsoleRenderable:
        if not isinstance(one, Text):
            return one
        one = as_run_here(one)
        if self._width is None:
            return one
        lines = (part for line in one.split("\n", allow_blank=True) for part in hanging(line, self._width))
        return Text("\n", end=one.end).join(lines)


# Where a text has a command of this program: in backquotes, or in a column.
_COMMAND = re.compile(rf"(?:(?<=`)|(?<=  )){PROGRAM}(?= [a-z-])")


def as_run_here(text: Text) -> Text:
    """The text, with commands that can be pasted if the program is not on the PATH."""
    cuts = [at for found in _COMMAND.finditer(text.plain) for at in found.span()]
    # most lines have no command, and the PATH is read for those that have one
    if not cuts or (ours := run_command_here()) == PROGRAM:
        return text
    pieces = text.divide(cuts)
    return Text("", end=text.end).join(Text(ours) if number % 2 else piece for number, piece in enumerate(pieces))


# The beginning of lines that are copied: commands and settings. The terminal folds them, and a copy has one line.
_COPIED = re.compile(r"command |[A-Z][A-Z0-9_]*=")

_COLUMNS = re.compile(r" *(?:\S+(?: \S+)* {2,})*")  # what is before the last column of a line
NARROW = 40  # columns that the last column keeps: with fewer, its lines begin with four blanks


def hanging(line: Text, width: int) -> Iterator[Text]:
    """Yield a line as lines of at most `width` columns. Only a word that is longer is left to the terminal."""
    found = _COLUMNS.match(line.plain)
    indent = found.end() if found else 0
    indent, begin = (indent, indent) if width - indent >= NARROW else (4, 0)
    before, room = "", width
    while line.cell_len > room and not _COPIED.match(line.plain):
        # a character may take two columns
        cut = line.plain.rfind(" ", begin + 1, room + 1 - (line.cell_len - len(line)))
        if cut < 0:
            break
        yield Text(before) + line[:cut]
        line, before, room, begin = line[cut + 1 :], " " * indent, width - indent, 0
    yield Text(before) + line


class _Escaped:
    def __init__(self, inner: ConsoleRenderable) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rendered: Iterable[Segment] = console.render(self._inner, options)
        for segment in rendered:
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


GAP = 3  # blanks between two columns
LEAST = 16  # blanks that a column of texts keeps: narrower, it would break most words


def drawn_grid(grid: Grid, width: int) -> RenderableType:
    """Return what Rich prints for a table on a terminal with `width` blanks in a line."""
    if _needed(grid) > width:
        return Group(*_one_below_the_other(grid, width))
    drawn = Table(*grid.columns, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in drawn.columns:
        # the others are names and figures, which are copied
        column.no_wrap = column.header not in _texts(grid)
        column.overflow = "fold"
    for row in grid.rows:
        drawn.add_row(*row)
    return drawn


def _texts(grid: Grid) -> tuple[str, ...]:
    """The columns whose cells may be broken into several lines."""
    return grid.wraps or grid.columns[-1:]


def _needed(grid: Grid) -> int:
    """Blanks in a line that the columns need."""
    widths = (max(map(cell_len, cells)) for cells in zip(grid.columns, *grid.rows, strict=True))
    least = (
        min(width, LEAST) if name in _texts(grid) else width for name, width in zip(grid.columns, widths, strict=True)
    )
    return sum(least) + GAP * (len(grid.columns) - 1)


def _one_below_the_other(grid: Grid, width: int) -> Iterator[Text]:
    """Yield each row as its first cell, and below it the other cells behind the names of their columns."""
    for first, *others in grid.rows:
        yield Text(first, style="bold")
        named = zip(grid.columns[1:], others, strict=True)
        line = ", ".join(f"{name} {cell}".strip() for name, cell in named if cell)
        for part in wrap(line, width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False):
            yield Text(part)


PIPE_WIDTH = 240  # columns of a table that goes into a pipe
LONGEST_DETAIL = 100_000  # characters of an error's detail, such as the end of a log
_STYLES = {"error": "red", "warning": "yellow", "note": "cyan"}


def run_command(
    function: Callable[..., Report], about: About, context: typer.Context, /, *args: Any, **kwargs: Any
) -> None:
    """Call a command, print its report, and exit with its code. Raises typer.Exit."""
    options, directory = given(context), HERE
    as_json, in_lines = (name in options and name in about.shared for name in ("as_json", "json_stream"))
    LOUDNESS.quiet = "quiet" in options
    known: list[Secret] = []
    try:
        shared = values(function, about, context)
        directory = shared.get("directory") or HERE
        if directory not in {HERE, options.get("directory")} and not kwargs.get("url"):
            note(f"deployment {directory}")
        known += _secrets(directory)
        with _logged(Redactor(known), verbose="verbose" in options):
            try:
                report = function(*args, **shared, **kwargs)
            except (DeployError, typer.Abort):
                raise
            except Exception as problem:  # the last line of defence: users see no traceback
                report = Report(failure=failure_of(problem))
    except KeyboardInterrupt:
        report = Report(failure=interrupted(about))
    except typer.Abort:
        # end of input at a question, which comes before any change
        report = Report(failure=Interrupted(UNANSWERED))
    except DeployError as refusal:
        report = Report(failure=refusal)
    if isinstance(report.failure, NoDeployment):
        report.failure.detail = _those_there_are()
    # a command may replace the key: neither the old one nor the new one is shown
    redact = Redactor([*known, *_secrets(directory)])
    _place_hint(report.failure, directory, remote=bool(kwargs.get("url")))
    report = _cut(report, about.name, redact)
    if as_json or in_lines:
        whole = document(about.name, report.data, report.findings, report.failure)
        print_json({"event": "result", **whole} if in_lines else whole, redact, in_lines=in_lines)
    else:
        if report.findings_first:
            _explain(replace(report, failure=None), redact)
            report = replace(report, findings=())
        _show(report.shown, redact)
    report = _delivered(report, about)
    _explain(report, redact)
    raise typer.Exit(report.failure.exit_code if report.failure else ExitCode.DONE)


ENGINE = {"absent": "not running", "exited": "not running: its process has ended"}


def deployments_table(found: Deployments) -> Grid:
    """A row for each deployment."""
    drawn = Grid("name", "engine", "model", "directory")
    for one in found.deployments:
        drawn.add_row(one.name, ENGINE.get(one.engine, one.engine), one.model, str(one.directory))
    return drawn


# Commands of a hint that work on a deployment, without the place of one.
_PLACELESS = re.compile(
    rf"(`{PROGRAM} (?:ask|bench|chat|connect|doctor|down|init --force|keys|logs|models use|plan|pull|render|restart"
    r"|rollback|run|set|status|test|tune|up|upgrade)\b(?![^`]*(?: --dir | --url | -h`))[^`]*)`"
)


def _place_hint(failure: DeployError | None, directory: Path, *, remote: bool) -> None:
    """Let the commands of a hint work on the deployment that this command worked on, if that was not another host."""
    if failure is not None and not isinstance(failure, NoDeployment) and not remote:
        with suppress(DeployError, OSError):
            failure.hint = _PLACELESS.sub(lambda found: f"{found[1]}{there(directory)}`", failure.hint)


def _those_there_are() -> str:
    """The table of `list`; empty without a deployment."""
    from dflash_deploy.operations.here import deployments

    found = deployments(HERE)
    with (out := console(stderr=True)).capture() as drawn:
        out.print(_drawn(deployments_table(found), out.width), markup=False)
    return drawn.get().rstrip("\n") if found.deployments else ""


UNANSWERED = "nothing has changed: the same command asks again"


def interrupted(about: About) -> Interrupted:
    """The failure of a command that Ctrl-C ended, with what running it again does."""
    if about.starts_over:
        return Interrupted("nothing was kept: the same command starts over")
    return Interrupted()


def last_resort(problem: Exception) -> ExitCode:
    """Show an exception that no command caught, such as one while its module is imported; return the exit code."""
    after = sys.argv[sys.argv.index("--dir") + 1 :] if "--dir" in sys.argv else []
    redact = Redactor(_secrets(Path(after[0]) if after else HERE))
    failure = failure_of(problem)
    _explain(_cut(Report(failure=failure), "".join(sys.argv[1:2]), redact), redact)
    return failure.exit_code


def _cut(report: Report, name: str, redact: Redact) -> Report:
    """The report, with an error that fits on a screen: it may quote a value of any length."""
    failure = report.failure
    if failure is not None:
        # secrets before the cut: a part of a secret would not be found
        failure.message = shortened(redact(failure.message))
        failure.hint = shortened(redact(failure.hint))
        failure.detail = shortened(redact(failure.detail), LONGEST_DETAIL)
    if isinstance(failure, Defect):
        failure.report = report_of(failure.cause, name, sys.argv[1:], redact)
    return report


def _delivered(report: Report, about: About) -> Report:
    """The report as it ends: that the output was lost is a failure, unless the command changed something.

    A reader that has ended, such as `head`, wanted no more.
    """
    problem = lost_output()
    if problem is None or problem.errno == errno.EPIPE or report.failure is not None:
        return report
    said = f"standard output cannot be written: {problem.strerror}"
    if about.changes:
        note(f"warning: {said}; the command itself succeeded")
        return report
    return replace(report, failure=PreflightRefused(said, hint="free disk space (`df -h`), or write it elsewhere"))


def console(*, stderr: bool = False) -> Console:
    """A console that prints plain text into a pipe, with NO_COLOR, and on a dumb terminal."""
    screen = Console(stderr=stderr, highlight=False, soft_wrap=True, emoji=False)
    screen.push_render_hook(Escape(screen.width if screen.is_terminal else None))
    if not screen.is_terminal and "COLUMNS" not in os.environ:
        # a program that reads a pipe has no edge to cut a table at
        screen.width = PIPE_WIDTH
    return screen


def _drawn(item: Shown, width: int) -> RenderableType:
    """What Rich prints for it."""
    if isinstance(item, Styled):
        return Text.assemble(*item.parts)
    return item if isinstance(item, str) else drawn_grid(item, width)


@dataclass
class Loudness:
    """How much is printed beside results and errors. `quiet`: nothing."""

    quiet: bool = False


LOUDNESS = Loudness()  # of this process: one command


def note(text: str) -> None:
    """A line for people while something runs; never on standard output."""
    if not LOUDNESS.quiet:
        console(stderr=True).print(text, markup=False)


def print_json(document: Mapping[str, object], redact: Redact, *, in_lines: bool) -> None:
    """A document on standard output, without secrets. `in_lines`: on one line, flushed at once."""
    # an escape of another encoding's error handler would not be JSON
    plain = codecs.lookup(sys.stdout.encoding or "utf-8").name != "utf-8"
    text = json.dumps(redacted(document, redact), indent=None if in_lines else 2, ensure_ascii=plain)
    sys.stdout.write(visible_json(text) + "\n")
    sys.stdout.flush()


class _Notes(logging.Handler):
    """Prints each message of a log as a note on one line, without secrets."""

    def __init__(self, redact: Redact) -> None:
        super().__init__()
        self._redact = redact

    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(self._redact(record.getMessage()).split())
        note(f"{record.levelname.lower()}: {shortened(text)}")


@contextmanager
def _logged(redact: Redact, *, verbose: bool) -> Iterator[None]:
    """Show what the package logs while a command runs: warnings, such as a damaged state file; with `verbose` all.

    `verbose` also shows each HTTP request.
    """
    handler = _Notes(redact)
    levels = {"dflash_deploy": logging.DEBUG, "httpx": logging.INFO} if verbose else {"dflash_deploy": logging.WARNING}
    logs = [logging.getLogger(name) for name in levels]
    for log in logs:
        log.addHandler(handler)
        log.setLevel(levels[log.name])
    try:
        yield
    finally:
        for log in logs:
            log.removeHandler(handler)


def _secrets(directory: Path) -> list[Secret]:
    """The secrets of the deployment that a command works on."""
    try:
        return list(Deployment(directory).known_secrets)
    except (OSError, DeployError):
        return []


def _show(items: Iterable[Shown], redact: Redact) -> None:
    """The result for people, on standard output."""
    out = console()
    for item in items:
        with out.capture() as drawn:
            out.print(_drawn(item, out.width), markup=False)
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
    if isinstance(report.failure, Defect):
        err.print(f"\n{redact(report.failure.report)}", markup=False)
