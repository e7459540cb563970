"""The reporter that receives what happens during an operation, and how long operations wait for an engine.

`cli` shows it on a terminal; another program may log it, or leave it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

from dflash_deploy.startup.progress import show_redacted

if TYPE_CHECKING:
    from dflash_deploy.bench.figures import Row
    from dflash_deploy.checks.check import CheckResult
    from dflash_deploy.redact import Redact
    from dflash_deploy.startup.progress import ShowProgress


FETCHES = "fetching weights"  # the phase of a start in which weights are downloaded. `last_line` says how far it is.
Count = Callable[[int], None]  # takes the number of bytes that have arrived since the last call; any thread may call it


class Reporter(Protocol):
    """Receives what happens. Secrets are redacted before it gets any text."""

    def note(self, text: str) -> None:
        """One line for people."""

    def starting(self) -> AbstractContextManager[ShowProgress]:
        """Opens what shows the progress of one start of the engine."""

    def transferring(self, total: int) -> AbstractContextManager[Count]:
        """Opens what counts bytes that arrive, of `total` in all."""

    def checked(self, check: CheckResult) -> None:
        """One check of `test` has ended."""

    def measured(self, row: Row, setting: str) -> None:
        """One measurement has ended. `setting` is what `tune` is trying; empty in a benchmark."""


class Silent:
    """A reporter that shows nothing: the default of every operation."""

    def note(self, text: str) -> None:
        """Nothing."""

    @contextmanager
    def starting(self) -> Iterator[ShowProgress]:
        """Nothing."""
        yield lambda progress: None

    @contextmanager
    def transferring(self, total: int) -> Iterator[Count]:
        """Nothing."""
        yield lambda count: None

    def checked(self, check: CheckResult) -> None:
        """Nothing."""

    def measured(self, row: Row, setting: str) -> None:
        """Nothing."""


SILENT = Silent()


def start_shown(reporter: Reporter, redact: Redact) -> AbstractContextManager[ShowProgress]:
    """The progress of one start, for as long as the block runs, without secrets."""
    return show_redacted(reporter.starting, redact)
