"""Why an engine that listens does not generate: the answer names the cause more often than the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from dflash_deploy.startup.diagnosis import Explanation, LogReader

if TYPE_CHECKING:
    from dflash_deploy.client import EndpointError

OF_OTHER_SETTINGS = frozenset({401, 403, 404})
"""Answers to a key or a model's name that the running engine does not know: its log does not tell why."""


def why_refused(reader: LogReader, problem: EndpointError, log: Callable[[], Explanation]) -> Explanation:
    """Return what explains an answer that is an error: the answer itself, or `log` if the answer names no cause."""
    if problem.status is not None:
        answered = reader.read([f"error: {problem}"])
        if answered.confidence == "named":
            return answered
    return log()


def hints_from(reader: LogReader, lines: Callable[[], Sequence[str]]) -> Callable[[EndpointError], str]:
    """Return a function that gives the cause and the fix of an answer that is an error; empty if it is not known.

    `lines` gives the engine's log. It is called once, and only if an answer names no cause itself.
    """

    @cache
    def log() -> Explanation:
        return reader.read(lines())

    def hint(problem: EndpointError) -> str:
        if problem.status is None or problem.status in OF_OTHER_SETTINGS:
            return ""
        found = why_refused(reader, problem, log).diagnosis
        return "" if found is None else f"{found.cause} ({found.id}): {found.do}"

    return hint
