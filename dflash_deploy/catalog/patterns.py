"""Whether the search time of a regular expression grows with the length of a line, and not with a power of it."""

from __future__ import annotations

import re
from functools import cache

MOST_REPEATS = 5

ENDS_ANYTHING = 3
"""Characters that must follow `.*` before the next repeat."""

_SAMPLE = frozenset({*map(chr, range(128)), "\u00e9", "\u4e2d", "\u2588", "\u00a0"})
"""Characters that represent all others in the comparison of two atoms."""

_REPEATED_GROUP = re.compile(r"(?<!\\)\)[*+{]")
_REFERENCE = re.compile(r"\\[1-9]|\(\?P=")

_TOKEN = re.compile(
    r"""
      (?P<syntax> \(\?P<\w+> | \(\?:? | [()^$|] )
    | (?P<atom> \\. | \[\^?\]?(?:\\.|[^\]\\])*\] | . )
      (?P<repeat> [*+] | \{\d*,\d*\} | \{\d+\} )?
    """,
    re.VERBOSE | re.DOTALL,
)
"""A group's beginning or end, or a character with what repeats it."""


def slow_because(pattern: str) -> str:
    """Return why a pattern may be too slow; empty if it is not.

    A repeat that is followed by a character that it does not match can end at one place only. Two repeats without such
    a character between them try every way to divide a text. `.*` occurs once, with three fixed characters behind it.
    """
    if _REPEATED_GROUP.search(pattern):
        return "a group is repeated"
    if _REFERENCE.search(pattern):
        return "it has a back-reference"
    if sum(map(pattern.count, "*+{")) < 2:
        return ""
    repeats, anything, fixed, before = 0, 0, 0, ""
    for token in _TOKEN.finditer(pattern):
        atom, repeat = token["atom"], token["repeat"]
        if atom is None or atom == "?":
            continue
        fixed = 0 if repeat else fixed + 1
        optional = repeat == "*" or (repeat or "").startswith(("{0", "{,"))
        if before and not optional and (fixed >= ENDS_ANYTHING if before == "." else not _overlap(before, atom)):
            before = ""
        if repeat:
            repeats, anything = repeats + 1, anything + (atom == ".")
            if anything > 1 or repeats > MOST_REPEATS:
                return f"it has more than one `.*` or more than {MOST_REPEATS} repeats"
            if before:
                return f"`{before}` and `{atom}` are repeated without a character between them that ends the first"
            before = atom
    return ""


def _overlap(one: str, other: str) -> bool:
    """Whether some character matches both atoms."""
    if len(other) == 1 and other != ".":
        return re.fullmatch(one, other) is not None
    return not _matched(one).isdisjoint(_matched(other))


@cache
def _matched(atom: str) -> frozenset[str]:
    matches = re.compile(atom, re.DOTALL).fullmatch
    return frozenset(char for char in (*_SAMPLE, *atom) if matches(char))
