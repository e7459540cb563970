"""Bytes that arrive: a bar with rate and time left on a terminal, a line now and then in a pipe."""

from __future__ import annotations

import math
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn
from rich.text import Text

from dflash_deploy.bench.figures import PARTS, Row, at_concurrency
from dflash_deploy.cli.options import GB
from dflash_deploy.cli.report import LOUDNESS, console, note, print_json
from dflash_deploy.cli.shown import visible
from dflash_deploy.operations.reporter import FETCHES, SILENT
from dflash_deploy.startup.progress import StartProgress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from dflash_deploy.checks.check import CheckResult
    from dflash_deploy.operations.reporter import Count
    from dflash_deploy.startup.progress import ShowProgress


EVERY = 10.0  # seconds between two lines in a pipe


@dataclass(frozen=True)
class Arrived:
    """How far a transfer is: bytes, and seconds since it began."""

    done: int
    total: int
    seconds: float

    def __str__(self) -> str:
        rate = self.done / max(self.seconds, 0.001)
        left = (self.total - self.done) / rate if rate > 0 else 0.0
        return f"{self.done / GB:.2f} of {self.total / GB:.2f} GB, {rate / 1e6:.0f} MB/s, {left:.0f} s left"


@contextmanager
def transfer_display(total: int) -> Iterator[Callable[[int], None]]:
    """Yields the function that takes the count of bytes as they arrive; any thread may call it."""
    screen = console(stderr=True)
    if not screen.is_terminal or screen.is_dumb_terminal:
        yield Lines(total, EVERY, lambda arrived: console(stderr=True).print(str(arrived), markup=False))
        return
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda count: progress.advance(task, count)


class Lines:
    """Says how far a transfer is, at most once in `every` seconds; any thread may call it."""

    def __init__(self, total: int, every: float, say: Callable[[Arrived], None]) -> None:
        self._total = total
        self._every = every
        self._say = say
        self._done = 0
        self._began = self._said = time.monotonic()
        self._guard = threading.Lock()

    def __call__(self, count: int) -> None:
        """Count bytes that have arrived since the last call."""
        with self._guard:
            self._done += count
            now = time.monotonic()
            if now - self._said < self._every:
                return
            self._said = now
            arrived = Arrived(self._done, self._total, now - self._began)
        self._say(arrived)


HEARTBEAT = 15.0  # seconds after which a pipe gets a line even though nothing has changed
QUIET = 2.5  # seconds without a line after which `Terminal.working` says that the work continues: 3 at most
_ERASE = "\r\x1b[K"  # erases the line that the cursor is on
EVENT_EVERY = 2.0  # seconds between two lines of JSON about bytes that arrive
MB = 10**6

LONGEST_LINE = 160  # characters of a line of progress in a pipe
_STYLES = {"passed": "green", "skipped": "yellow"}


class Terminal:
    """The reporter of the command line. What it shows goes to standard error.

    `json_stream` prints the progress of a start as lines of JSON on standard output. `results_on_stdout` prints each
    check there: it is part of the result for people.
    """

    def __init__(self, *, json_stream: bool = False, results_on_stdout: bool = False) -> None:
        self._json_stream = json_stream
        self._results = console(stderr=not results_on_stdout)
        self._said = time.monotonic()
        self._drawn = False
        self._quiet = LOUDNESS.quiet and not json_stream

    def note(self, text: str) -> None:
        """One line."""
        self._alive()
        note(text)

    def _alive(self, said: float | None = None) -> None:
        """Remove the line of `working`, and count its seconds from now, or from `said`."""
        self._said = time.monotonic() if said is None else said
        if self._drawn:
            sys.stderr.write(_ERASE)
            self._drawn = False

    @contextmanager
    def working(self, doing: str, quiet: float = QUIET) -> Iterator[None]:
        """Shows after `quiet` seconds without a line that the work continues.

        A terminal has one line with the seconds; a pipe gets a line each time.
        """
        if self._quiet:
            yield
            return
        ended, screen = threading.Event(), console(stderr=True)
        in_place = screen.is_terminal and not screen.is_dumb_terminal

        def beat() -> None:
            due = quiet
            while not ended.wait(quiet / 5):
                silent = time.monotonic() - self._said
                due = quiet if silent < quiet else due
                if silent >= due and in_place:
                    self._drawn = True
                    sys.stderr.write(f"{_ERASE}        {doing}: {silent:.0f} s")
                    sys.stderr.flush()
                elif silent >= due:
                    note(f"        {doing}: {silent:.0f} s")
                    due = silent + quiet

        self._alive()
        beating = threading.Thread(target=beat, daemon=True)
        beating.start()
        try:
            yield
        finally:
            ended.set()
            beating.join()
            self._alive()

    @contextmanager
    def starting(self) -> Iterator[ShowProgress]:
        """The progress of one start, for as long as the block runs."""
        # it says itself how long it takes
        self._alive(math.inf)
        with SILENT.starting() if self._quiet else _start_display(json_stream=self._json_stream) as show:
            yield show
        self._alive()

    def transferring(self, total: int) -> AbstractContextManager[Count]:
        """A bar with rate and time left, or a line now and then."""
        if self._quiet:
            return SILENT.transferring(total)
        return _transfer_events(total) if self._json_stream else transfer_display(total)

    def checked(self, check: CheckResult) -> None:
        """A line for the check, and its hint if it failed."""
        self._alive()
        if self._quiet and self._results.stderr:
            return
        status = (f"{check.status:7}", _STYLES.get(check.status, "bold red"))
        said = f" {check.name:9} {check.seconds:5.2f} s  {' '.join(check.got.split())}"
        self._results.print(Text.assemble(status, said))
        if check.hint:
            self._results.print(f"        hint: {check.hint}", markup=False)

    def measured(self, row: Row, setting: str) -> None:
        """A line for the measurement."""
        self._alive()
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
    status.update(Text.assemble((head, "bold"), (visible(calm(progress.last_line))[:room], "dim")))


_ALARMING = re.compile("fail|error|fatal|exception", re.IGNORECASE)


def calm(line: str) -> str:
    """The last line of the engine's log, unless it names a failure: engines try things, and a real end is explained."""
    return "" if _ALARMING.search(line) else line


def _line(progress: StartProgress) -> str:
    last_time = f" ({progress.usual_in_phase:.0f} s last time)" if progress.usual_in_phase else ""
    said = f": {last}" if (last := calm(progress.last_line)) else ""
    line = f"{progress.elapsed:5.0f} s  {_where(progress)}{last_time}{said}"
    # an engine writes its whole configuration in one line
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 1]}…"


def _event(progress: StartProgress) -> None:
    print_json(progress.document(), str, in_lines=True)


@contextmanager
def _transfer_events(total: int) -> Iterator[Count]:
    yield Lines(total, EVENT_EVERY, _transfer_event)


def _transfer_event(arrived: Arrived) -> None:
    done, all_ = arrived.done // MB, arrived.total // MB
    took = arrived.seconds
    _event(StartProgress(FETCHES, took, str(arrived), done, all_, took, usual=None, usual_in_phase=None))


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
