"""The key lines of a log with an unknown failure: the first exception and the errors, not the last twenty lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dflash_deploy.startup.collector import Collector, tells_error
from dflash_deploy.startup.evidence import LogEvidence, Raised
from dflash_deploy.startup.log_lines import LONGEST_LINE
from dflash_deploy.startup.tracebacks import RAISED

MOST_LINES = 12

MOST_AROUND = 4
"""Lines around the errors that are shown below them."""

MOST_WORK = 4 * 10**8
"""Sum of the squared lengths of messages that are searched: one pattern takes at most a second or two for them."""

WHOLE_TEXT = 4
"""Lines of an exception's text that are shown whole; of a longer one the first, and those that tell an error."""

_COUNTED = re.compile(r"0x[0-9a-f]+|\d+")


def searchable(messages: Sequence[str]) -> tuple[str, ...]:
    """Return the messages, cut to a length at which they are searched in bounded time.

    The time of a search may grow with the square of a message. Only logs with thousands of long messages are cut.
    """
    longest = LONGEST_LINE
    while longest > 1 and sum(min(len(message), longest) ** 2 for message in messages) > MOST_WORK:
        longest //= 2
    return tuple(message[:longest] for message in messages)


def key_lines(lines: Sequence[str], most: int = MOST_LINES) -> tuple[str, ...]:
    """Return the decisive lines of a log."""
    return decisive_lines(Collector().read(lines).evidence(), most)


def decisive_lines(evidence: LogEvidence, most: int = MOST_LINES) -> tuple[str, ...]:
    """Return at most `most` lines, each once: the exceptions that ended the engine, their causes, the errors.

    The first exception has the frame that raised it. The last MOST_AROUND lines are around the errors:
    just before the first one, and at the end. Without an error, return warnings and debug messages that
    tell one, and the last messages.
    """
    raised = [*evidence.ending(), *evidence.causes(), *evidence.logged()]
    told = [*(raised[0].frame if raised else ()), *(line for one in raised for line in _text(one))]
    told += [*evidence.fatal(), *evidence.errors_before(), *evidence.kernel]
    if not told:
        shown = _each_once([*(evidence.echoes() or evidence.warned), *evidence.opening(), *evidence.end()])
        return tuple(shown[-most:])
    errors = _each_once(told)
    around = _each_once([*errors, *evidence.around()])[len(errors) :]
    kept = around[-MOST_AROUND:]
    return (*errors[: most - len(kept)], *kept)


def _text(raised: Raised) -> Iterator[str]:
    """Yield an exception and the lines below it that explain it."""
    first, *others = raised.text
    yield first
    short = len(others) <= WHOLE_TEXT
    yield from (line for line in others if line.strip() and (short or RAISED.match(line) or tells_error(line)))


def _each_once(lines: Sequence[str]) -> list[str]:
    """Return the lines without those that differ from an earlier one only in their numbers."""
    kept: dict[str, str] = {}
    for line in lines:
        kept.setdefault(_COUNTED.sub("#", line.strip()), line)
    return list(kept.values())
