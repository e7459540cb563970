"""Whether the search time of a regular expression grows at most with the square of a line, and never exponentially.

A search tries every place of a line as a beginning. From one beginning, a pattern that is accepted here reads the line
a limited number of times. `startup.log_lines` limits the lines, and so the time of a search.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

MOST_REPEATS = 5

MOST_WAYS = 64
"""Ways to choose among alternatives and optional parts: each may be tried from every beginning."""

MOST_LEVELS = 20

ENDS_ANYTHING = 3
"""Characters that must follow `.*` before the next repeat."""

_SAMPLE = frozenset({*map(chr, range(128)), "\u00e9", "\u4e2d", "\u2588", "\u00a0"})
"""Characters that represent all others in the comparison of two atoms."""

_REFERENCE = re.compile(r"\\[1-9](?![0-7]{2})|\(\?P=")

_TOKEN = re.compile(
    r"""
      (?P<syntax> \(\?P<\w+> | \(\?(?: : | <?[=!] | [aimsu]+[:)] )? | [()^$|] )
    | (?P<atom>
          \\(?: x[0-9a-fA-F]{2} | u[0-9a-fA-F]{4} | U[0-9a-fA-F]{8} | N\{[^}]*\} | [0-7]{1,3} | . )
        | \[\^?\]?(?:\\.|[^\]\\])*\]
        | .
      )
      (?: (?P<repeat> [*+?] | \{\d*,\d*\} | \{\d+\} ) [?+]? )?
    """,
    re.VERBOSE | re.DOTALL,
)
"""A group's beginning or end, or a character with what repeats it."""

_REPEAT = re.compile(r"[*+{]")
_NO_WIDTH = frozenset({r"\b", r"\B", r"\A", r"\Z"})
_LOOKAROUND = frozenset({"(?=", "(?!", "(?<=", "(?<!"})
_ENCODED = re.compile(r"\\[xuUN0-7]")
_IGNORES_CASE = re.compile(r"\(\?[a-z]*i")


class _Slow(Exception):
    """Raised with the reason why a pattern may be too slow."""


@dataclass(frozen=True)
class _Reached:
    """What is known at one place of a pattern, of all ways to it.

    `open` are the repeats that may also match what follows. `fixed` are the characters since the last repeat that
    every way has. `fences` are the texts that ended `.*`: a later repeat that matches one reads a line many times.
    """

    open: frozenset[str] = frozenset()
    fixed: tuple[str, ...] = ()
    fences: frozenset[tuple[str, ...]] = frozenset()


def slow_because(pattern: str) -> str:
    """Return why a pattern may be too slow; empty if it is not.

    A repeat that is followed by a character that it does not match can end at one place only. Two repeats without such
    a character between them try every way to divide a text. `.*` occurs once, with three fixed characters behind it.
    """
    if _REFERENCE.search(pattern):
        return "it has a back-reference"
    try:
        _Walk(pattern).whole()
    except _Slow as slow:
        return str(slow)
    return ""


class _Walk:
    """Reads a pattern from left to right, and every alternative from the same place."""

    def __init__(self, pattern: str) -> None:
        self._tokens = list(_TOKEN.finditer(pattern))
        self._next = 0
        self._levels = self._repeats = self._anything = 0
        self._flags = re.DOTALL | (re.IGNORECASE if _IGNORES_CASE.search(pattern) else 0)

    def whole(self) -> None:
        """Read the whole pattern. Raises _Slow."""
        self._branches(_Reached())

    def _branches(self, start: _Reached) -> tuple[_Reached, int]:
        """Read alternatives until the end of their group. Return what is known behind them, and the number of ways."""
        self._levels += 1
        if self._levels > MOST_LEVELS:
            raise _Slow(f"its groups are nested deeper than {MOST_LEVELS} levels")
        now, ways = start, 1
        ends, total = list[_Reached](), 0
        while self._next < len(self._tokens):
            token = self._tokens[self._next]
            self._next += 1
            syntax = token["syntax"] or ""
            if syntax == ")":
                break
            if syntax == "|":
                ends.append(now)
                now, total, ways = start, total + ways, 1
            elif syntax.startswith("("):
                now, more = self._group(now, syntax)
                ways *= more
            elif not syntax:
                now = self._atom(now, token["atom"], token["repeat"] or "")
                ways *= 2 if token["repeat"] == "?" else 1
            if total + ways > MOST_WAYS:
                raise _Slow(f"it has more than {MOST_WAYS} ways to combine its alternatives and optional parts")
        self._levels -= 1
        return _joined([*ends, now]), total + ways

    def _group(self, now: _Reached, begin: str) -> tuple[_Reached, int]:
        if begin.endswith(")"):
            # flags of the whole pattern
            return now, 1
        if begin == "(?":
            raise _Slow("it has a group that is not one of (...), (?:...), (?P<name>...), a flag or a lookaround")
        behind, ways = self._branches(now)
        repeat = self._tokens[self._next]["atom"] if self._next < len(self._tokens) else None
        if repeat and _REPEAT.match(repeat):
            raise _Slow("a group is repeated")
        if repeat == "?":
            self._next += 1
        optional = repeat == "?" or begin in _LOOKAROUND
        return (_joined([now, behind]), ways + 1) if optional else (behind, ways)

    def _atom(self, now: _Reached, atom: str, repeat: str) -> _Reached:
        """Return what is known behind one character, class or repeat. Raises _Slow if a repeat divides a text."""
        if atom in _NO_WIDTH:
            return now
        repeats = repeat not in {"", "?"}
        if repeats:
            self._count(atom)
            self._refuse_overlap(now, atom)
        optional = repeat in {"?", "*"} or repeat.startswith(("{0", "{,"))
        fixed = () if repeats else now.fixed if optional else (*now.fixed, atom)
        still, fences = now.open, now.fences
        if not optional:
            if "." in still and len(fixed) >= ENDS_ANYTHING:
                fences |= {fixed}
            still = frozenset(one for one in still if not self._ends(one, atom, fixed))
        return _Reached(still | {atom} if repeats else still, fixed, fences)

    def _count(self, atom: str) -> None:
        self._repeats += 1
        self._anything += atom == "."
        if self._anything > 1 or self._repeats > MOST_REPEATS:
            raise _Slow(f"it has more than one `.*` or more than {MOST_REPEATS} repeats")

    def _refuse_overlap(self, now: _Reached, atom: str) -> None:
        before = [one for one in sorted(now.open) if one == "." or self._overlap(one, atom)]
        if before:
            raise _Slow(f"`{before[0]}` and `{atom}` are repeated without a character between them that ends the first")
        if any(all(self._overlap(atom, one) for one in fence) for fence in now.fences):
            raise _Slow(f"`{atom}` also matches the text that ends `.*`")

    def _ends(self, open_repeat: str, atom: str, fixed: tuple[str, ...]) -> bool:
        if open_repeat == ".":
            return len(fixed) >= ENDS_ANYTHING
        return not self._overlap(open_repeat, atom)

    def _overlap(self, one: str, other: str) -> bool:
        """Whether some character matches both atoms."""
        if any("[" in atom and _ENCODED.search(atom) for atom in (one, other)):
            # the ends of its ranges are not among the compared characters
            return True
        chars = _SAMPLE.union(one, other)
        return not _matched(one, chars, self._flags).isdisjoint(_matched(other, chars, self._flags))


def _joined(ways: Iterable[_Reached]) -> _Reached:
    """What is known where several ways meet: each may have led there."""
    first, *others = ways
    for other in others:
        # a character of one way or of another, counted from here
        fixed = tuple(
            one if one == two else f"(?:{one}|{two})"
            for one, two in zip(reversed(first.fixed), reversed(other.fixed), strict=False)
        )
        first = _Reached(first.open | other.open, fixed[::-1], first.fences | other.fences)
    return first


@cache
def _matched(atom: str, chars: frozenset[str], flags: int) -> frozenset[str]:
    matches = re.compile(atom, flags).fullmatch
    return frozenset(char for char in chars if matches(char))
