"""What is being done on the way to the first answer, read from the lines that Compose and the engine write."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dflash_deploy.catalog import load_catalog
from dflash_deploy.catalog.phases import PhaseMark


@dataclass(frozen=True)
class Step:
    """A phase, and how far it is: `done` of `total`, such as shards of the weights; both 0 where nothing is counted."""

    phase: str
    done: int = 0
    total: int = 0


class Phases:
    """What tells the phases of one engine. A start need not go through all of them."""

    def __init__(self, by: str) -> None:
        self._marks: Sequence[PhaseMark] = [mark for mark in load_catalog().phases if by in mark.by]

    def after(self, lines: Iterable[str], step: Step) -> Step:
        """Where the start is after these lines, having been at `step` before."""
        for line in lines:
            step = self._after(line, step)
        return step

    def _after(self, line: str, step: Step) -> Step:
        for mark in self._marks:
            if mark.beginning.search(line) and mark.phase != step.phase:
                step = Step(mark.phase)
            if counted := mark.counting.search(line):
                step = Step(step.phase, int(counted[1]), int(counted[2]))
        return step


_LINE_PREFIX = re.compile(r"^(\([^)]*\) )?(INFO|WARNING|ERROR|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d (\[[^\]]*\] )?")


def message_of(line: str) -> str:
    """A log line without process, level, time and place."""
    return _LINE_PREFIX.sub("", line).strip()
