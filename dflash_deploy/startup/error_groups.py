"""Which errors of a log belong together: an engine that writes other messages after an error has survived it."""

from __future__ import annotations

from dflash_deploy.startup.log_lines import ERRORS, LogLine

CONTINUES = 4
"""Messages without an error that show that the process continued after the error before them."""

MOST_OTHERS = 2000
"""Lines of other processes after which an error is history, whatever its own process wrote."""


class ErrorGroups:
    """Numbers the groups of errors while a log is read.

    Only what the process of the last error writes separates two groups, in the same format: other processes, and
    warnings, do not show that it continued.
    """

    def __init__(self) -> None:
        self.watches = False
        self._number = 1
        self._source = ""
        self._calm, self._others = 0, 0

    def passed(self, line: LogLine) -> None:
        """Note a message after an error; only needed while `watches`."""
        if line.level != "WARNING" and _source(line) == self._source:
            self._calm += 1
        self._others += 1
        if self._calm > CONTINUES or self._others >= MOST_OTHERS:
            self._number, self.watches = self._number + 1, False

    def of_error(self, line: LogLine) -> int:
        """The number of an error's group."""
        self._source, self._calm, self._others = _source(line), 0, 0
        self.watches = True
        return self._number


class Survived:
    """Whether the process of the last exception wrote other messages after it."""

    def __init__(self) -> None:
        self.watches = False
        self._process = ""
        self._calm, self._others = 0, 0

    def raised(self, process: str) -> None:
        """Note an exception."""
        self._process, self.watches = process, True
        self._calm, self._others = 0, 0

    def passed(self, line: LogLine) -> bool:
        """Note a message after an exception; return whether the process continued. Only needed while `watches`."""
        if line.record and line.process == self._process and line.level not in {"WARNING", *ERRORS}:
            self._calm += 1
        self._others += 1
        self.watches = self._calm <= CONTINUES and self._others < MOST_OTHERS
        return not self.watches


def _source(line: LogLine) -> str:
    """What wrote a line: its process, or the format of a log with one process."""
    return line.process or f"format {line.form}"
