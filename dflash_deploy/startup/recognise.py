"""Which engine, in which release, wrote a log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dflash_deploy.catalog.log_signs import LogSign

MOST_LINES = 20_000
"""Lines in which the engine is looked for; all of them name themselves in their first hundred."""


class Recognised:
    """The engine and release that a log names; each is empty as long as it does not.

    `told` is the engine if the user names it; lines of the log do not change it.
    """

    def __init__(self, signs: Sequence[LogSign], told: str = "") -> None:
        self.lines = 0
        self._signs = signs
        self._wrote = told
        self._mentioned: set[str] = set()
        self._releases: dict[str, str] = {}

    @property
    def engine(self) -> str:
        """The engine of the first line that only one engine writes, else the first of the signs that is mentioned."""
        return self._wrote or next((sign.engine for sign in self._signs if sign.engine in self._mentioned), "")

    @property
    def release(self) -> str:
        """The release of the engine."""
        return self._releases.get(self.engine, "")

    def watch(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the lines, and look for the engine in the first of them."""
        for line in lines:
            self.lines += 1
            if self.lines <= MOST_LINES and not (self._wrote and self.release):
                self._look(line)
            yield line

    def _look(self, line: str) -> None:
        for sign in self._signs:
            if not self._wrote and sign.writes.search(line):
                self._wrote = sign.engine
            if not self._wrote and sign.mentioned.search(line):
                self._mentioned.add(sign.engine)
            if sign.engine not in self._releases and (found := sign.releases.search(line)):
                self._releases[sign.engine] = sign.prefix + found[1].rstrip(".")
