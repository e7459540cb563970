"""Progress of a start: the phase, read from what Compose and the engine write, and its time against the last start."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment.files import PRIVATE, write_atomically
from dflash_deploy.diagnosis.lines import LONGEST_LINE, clean, parsed
from dflash_deploy.document import Count, Documented, Seconds
from dflash_deploy.errors import FileRefused
from dflash_deploy.intake.documents import LastStart, read_state

if TYPE_CHECKING:
    from dflash_deploy.catalog.log_signs import PhaseMark
    from dflash_deploy.deployment.directory import Deployment
    from dflash_deploy.redact import Redact

NAME = "last-start.json"  # file in `.dflash/`: seconds of each phase of the last successful start
MOST_DIGITS = 9  # digits of a counted number, such as the shards of the weights


@dataclass(frozen=True)
class Step:
    """A phase and how far it is: `done` of `total`, such as shards of the weights. Both are 0 if nothing is counted."""

    phase: str
    done: int = 0
    total: int = 0


class Phases:
    """Recognizes the phases in the output of one engine, or of Compose. A start may skip some of them."""

    def __init__(self, by: str) -> None:
        """`by` is the engine's name, or `compose`."""
        self._marks: Sequence[PhaseMark] = [mark for mark in load_catalog().phases if by in mark.by]

    def after(self, lines: Iterable[str], step: Step) -> Step:
        """Return the step after these lines, given the step before them. Only the beginning of a long line is read."""
        for line in lines:
            step = self._after(line[:LONGEST_LINE], step)
        return step

    def _after(self, line: str, step: Step) -> Step:
        for mark in self._marks:
            if mark.beginning.search(line) and mark.phase != step.phase:
                step = Step(mark.phase)
            counted = mark.counting.search(line)
            if counted and max(len(counted[1]), len(counted[2])) <= MOST_DIGITS:
                step = Step(step.phase, int(counted[1]), int(counted[2]))
        return step


def message_of(line: str) -> str:
    """Return the beginning of a log line, without process, level, time, place and colors."""
    return parsed(clean(line)).message.strip()


@dataclass(frozen=True)
class StartProgress(Documented):
    """One line of `--json-stream` while the engine starts. The last line is the document of the command."""

    event: Literal["progress"] = field(default="progress", kw_only=True)
    """The kind of the line; that of the last line is `result`."""
    phase: str
    """The current phase in words, as in docs/reference/up.md. The text may change."""
    elapsed: Seconds
    """Seconds since the beginning of the start."""
    last_line: str
    """Last line of the engine's log, or how far the download of weights is; empty if there is none."""
    done: Count = 0
    """How much of the phase is done, of `total`; 0 if nothing is counted."""
    total: Count = 0
    """How much the phase has to do, such as files of weights, or MB to download; 0 if nothing is counted."""
    in_phase: Seconds = 0.0
    """Seconds since the beginning of the phase."""
    usual: Seconds | None = field(kw_only=True)
    """Seconds of the last successful start, or a published time before the first one; null if neither is known."""
    usual_in_phase: Seconds | None = field(kw_only=True)
    """Seconds of this phase in the last successful start; null if unknown."""


ShowProgress = Callable[[StartProgress], None]

# Opens what shows the progress of one start, for as long as that takes.
Display = Callable[[], AbstractContextManager[ShowProgress]]


@contextmanager
def show_redacted(display: Display, redact: Redact) -> Iterator[ShowProgress]:
    """The same display, which gets the last line of the log without secrets."""
    with display() as show:

        def shown(progress: StartProgress) -> None:
            show(replace(progress, last_line=redact(progress.last_line)))

        yield shown


class Timekeeper:
    """The one clock of a start: adds times to each step and passes it on to `show`."""

    def __init__(
        self, show: ShowProgress, usual: Mapping[str, float] = MappingProxyType({}), first: float | None = None
    ) -> None:
        """`usual` is the seconds of each phase of the last start, `first` the seconds of a whole first start."""
        self._show = show
        self._usual = usual
        self._whole = sum(usual.values()) or first
        self._began = self._phase_began = time.monotonic()
        self._phase = ""
        self._seconds: dict[str, float] = {}

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def tell(self, step: Step, line: str) -> None:
        """Show this step and the last line of output, with their times."""
        if step.phase != self._phase:
            self._end_phase()
            self._phase = step.phase
        progress = StartProgress(
            step.phase,
            self.elapsed,
            line,
            step.done,
            step.total,
            in_phase=time.monotonic() - self._phase_began,
            usual=self._whole,
            usual_in_phase=self._usual.get(step.phase),
        )
        self._show(progress)

    def ended(self) -> dict[str, float]:
        """End the current phase and return the seconds of each phase."""
        self._end_phase()
        return self._seconds

    def _end_phase(self) -> None:
        now = time.monotonic()
        if self._phase:
            self._seconds[self._phase] = self._seconds.get(self._phase, 0.0) + now - self._phase_began
        self._phase_began = now


def usual_seconds(deployment: Deployment) -> dict[str, float]:
    """Return the seconds of each phase of the last successful start; empty if there is none.

    A damaged file is set aside.
    """
    try:
        known = read_state(_file(deployment), LastStart)
    except FileRefused:
        # a file of another user loses the comparison, not the start
        return {}
    return known.root if known is not None else {}


def remember_seconds(deployment: Deployment, seconds: Mapping[str, float]) -> None:
    """Save the seconds of each phase, without the phases that only a first start has. Write errors are ignored."""
    once = {mark.phase for mark in load_catalog().phases if mark.once}
    rounded = {phase: round(took, 1) for phase, took in seconds.items() if phase not in once}
    with contextlib.suppress(OSError):
        deployment.make_state()
        write_atomically(_file(deployment), json.dumps(rounded, indent=2) + "\n", mode=PRIVATE)


def _file(deployment: Deployment) -> Path:
    return deployment.state / NAME
