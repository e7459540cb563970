"""Which engine, in which release, wrote a log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dflash_deploy.catalog.log_signs import LogSign

MOST_LINES = 20_000
"""Lines in which the engine is looked for; all of them name themselves in their first hundred."""


class Recognised:
    """The engine and release that a log names; each is empty as long as it does not."""

    def __init__(self, signs: Sequence[LogSign]) -> None:
        self.engine = ""
        self.lines = 0
        self._signs = signs
        self._releases: dict[str, str] = {}

    @property
    def release(self) -> str:
        """The release of the engine."""
        return self._releases.get(self.engine, "")

    def watch(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the lines, and look for the engine in the first of them."""
        for line in lines:
            self.lines += 1
            if self.lines <= MOST_LINES and not (self.engine and self.release):
                self._look(line)
            yield line

    def _look(self, line: str) -> None:
        for sign in self._signs:
            if not self.engine and sign.writes.search(line):
                self.engine = sign.engine
            if sign.engine not in self._releases and (found := sign.releases.search(line)):
                self._releases[sign.engine] = sign.prefix + found[1].rstrip(".")
