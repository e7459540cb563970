"""What is shown while an operation runs: one live line on a terminal, lines in a pipe, JSON lines for programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.text import Text

from dflash_deploy.bench.figures import PARTS, Row, at_concurrency
from dflash_deploy.cli.report import console, note, print_json
from dflash_deploy.cli.transfers import Arrived, Lines, transfer_display
from dflash_deploy.cli.visible import visible
from dflash_deploy.operations.reporter import FETCHES
from dflash_deploy.startup.progress import StartProgress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from dflash_deploy.checks import CheckResult
    from dflash_deploy.operations.reporter import Count
    from dflash_deploy.startup import ShowProgress

HEARTBEAT = 15.0
"""Seconds after which a pipe gets a line even though nothing has changed."""

EVENT_EVERY = 2.0
"""Seconds between two lines of JSON about bytes that arrive."""

MB = 10**6

LONGEST_LINE = 160
"""Characters of a line of progress in a pipe."""

_STYLES = {"passed": "green", "skipped": "yellow"}


class Terminal:
    """The reporter of the command line. What it shows goes to standard error.

    `json_stream` prints the progress of a start as lines of JSON on standard output. `results_on_stdout` prints each
    check there: it is part of the result for people.
    """

    def __init__(self, *, json_stream: bool = False, results_on_stdout: bool = False) -> None:
        self._json_stream = json_stream
        self._results = console(stderr=not results_on_stdout)

    def note(self, text: str) -> None:
        """One line."""
        note(text)

    def starting(self) -> AbstractContextManager[ShowProgress]:
        """The progress of one start, for as long as the block runs."""
        return _start_display(json_stream=self._json_stream)

    def transferring(self, total: int) -> AbstractContextManager[Count]:
        """A bar with rate and time left, or a line now and then."""
        return _transfer_events(total) if self._json_stream else transfer_display(total)

    def checked(self, check: CheckResult) -> None:
        """A line for the check, and its hint if it failed."""
        self._results.print(f"{check.status:7}", style=_STYLES.get(check.status, "bold red"), end="")
        said = f" {check.name:9} {check.seconds:5.2f} s  {' '.join(check.got.split())}"
        self._results.print(said, markup=False)
        if check.hint:
            self._results.print(f"        hint: {check.hint}", markup=False)

    def measured(self, row: Row, setting: str) -> None:
        """A line for the measurement."""
        rate = f"{row.tokens_per_s:.1f} tokens/s"
        if setting:
            length = f", {row.acceptance_length:.2f} tokens a step" if row.acceptance_length else ""
            note(f"  {setting}, {at_concurrency(row.concurrency)}: {rate}{length}")
            return
        failed = f", {row.failed} failed" if row.failed else ""
        note(f"{row.workload}, {at_concurrency(row.concurrency)}, {PARTS[row.speculation]}: {rate}{failed}")


@contextmanager
def _start_display(*, json_stream: bool) -> Iterator[ShowProgress]:
    screen = console(stderr=True)
    if json_stream:
        yield _OnChange(_event, counting=True)
    elif screen.is_terminal and not screen.is_dumb_terminal:
        with screen.status("starting") as status:
            yield lambda progress: _live(status, screen, progress)
    else:
        yield _OnChange(lambda progress: screen.print(_line(progress), markup=False), counting=False)


def _live(status: Status, screen: Console, progress: StartProgress) -> None:
    head = f"{_where(progress)}  {_times(progress)}  "
    room = max(screen.width - len(head) - 4, 10)
    status.update(Text.assemble((head, "bold"), (visible(progress.last_line)[:room], "dim")))


def _line(progress: StartProgress) -> str:
    last_time = f" ({progress.usual_in_phase:.0f} s last time)" if progress.usual_in_phase else ""
    said = f": {progress.last_line}" if progress.last_line else ""
    line = f"{progress.elapsed:5.0f} s  {_where(progress)}{last_time}{said}"
    # an engine writes its whole configuration in one line
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 1]}…"


def _event(progress: StartProgress) -> None:
    print_json({"event": "progress", **asdict(progress)}, str, in_lines=True)


@contextmanager
def _transfer_events(total: int) -> Iterator[Count]:
    yield Lines(total, EVENT_EVERY, _transfer_event)


def _transfer_event(arrived: Arrived) -> None:
    done, all_ = arrived.done // MB, arrived.total // MB
    _event(StartProgress(FETCHES, arrived.seconds, str(arrived), done, all_, arrived.seconds))


def _where(progress: StartProgress) -> str:
    return f"{progress.phase} {progress.done}/{progress.total}" if progress.total else progress.phase


def _times(progress: StartProgress) -> str:
    """Seconds so far, and the expected total if it is known and not exceeded yet."""
    if progress.usual is None or progress.elapsed > progress.usual:
        return f"{progress.elapsed:.0f} s"
    return f"{progress.elapsed:.0f} of about {progress.usual:.0f} s"


class _OnChange:
    """Shows a new phase at once, and one that continues every HEARTBEAT; with `counting`, each step within it too."""

    def __init__(self, show: Callable[[StartProgress], None], *, counting: bool) -> None:
        self._show = show
        self._counting = counting
        self._seen: tuple[str, int] | None = None
        self._said = 0.0

    def __call__(self, progress: StartProgress) -> None:
        now, seen = time.monotonic(), (progress.phase, progress.done if self._counting else 0)
        if seen != self._seen or now - self._said > HEARTBEAT:
            self._seen, self._said = seen, now
            self._show(progress)
