"""Which errors of a log belong together: an engine that writes other messages after an error has survived it."""

from __future__ import annotations

from dflash_deploy.startup.log_lines import ERRORS, LogLine

CONTINUES = 4
"""Messages without an error that show that the process continued after the error before them."""

MOST_OTHERS = 2000
"""Lines of other processes after which an error is history, whatever its own process wrote."""


class _Watch:
    """Counts the messages after an event, until they show that its process continued or it is history."""

    def __init__(self) -> None:
        self.watches = False
        self._calm, self._others = 0, 0

    def _begin(self) -> None:
        self.watches, self._calm, self._others = True, 0, 0

    def _over(self, *, calm: bool) -> bool:
        """Count a message, `calm` if it shows that the process continues; return whether it was enough."""
        self._calm += calm
        self._others += 1
        self.watches = self._calm <= CONTINUES and self._others < MOST_OTHERS
        return not self.watches


class ErrorGroups(_Watch):
    """Numbers the groups of errors while a log is read.

    Only what the process of the last error writes separates two groups, in the same format: other processes, and
    warnings, do not show that it continued.
    """

    def __init__(self) -> None:
        super().__init__()
        self._number = 1
        self._source = ""

    def passed(self, line: LogLine) -> None:
        """Note a message after an error; only needed while `watches`."""
        self._number += self._over(calm=line.level != "WARNING" and _source(line) == self._source)

    def of_error(self, line: LogLine) -> int:
        """The number of an error's group."""
        self._source = _source(line)
        self._begin()
        return self._number


class Survived(_Watch):
    """Whether the process of the last exception wrote other messages after it."""

    def __init__(self) -> None:
        super().__init__()
        self._process = ""

    def raised(self, process: str) -> None:
        """Note an exception."""
        self._process = process
        self._begin()

    def passed(self, line: LogLine) -> bool:
        """Note a message after an exception; return whether the process continued. Only needed while `watches`."""
        own = line.record and line.process == self._process
        return self._over(calm=own and line.level not in {"WARNING", *ERRORS})


def _source(line: LogLine) -> str:
    """What wrote a line: its process, or the format of a log with one process."""
    return line.process or f"format {line.form}"
