"""The error of all parsers in this package, and the names of keys in its message."""

from __future__ import annotations

from collections.abc import Iterable

LONGEST_KEY = 80
"""Characters of a key that a message shows."""

LONGEST_PLACE = 200
"""Characters of a place that a message shows."""


class Invalid(ValueError):
    """Raised when a text is not valid JSON or YAML, does not match its document, or exceeds a limit.

    The message completes a sentence that begins with the file's name: "is not valid JSON: …".
    """


def printable(key: object) -> str:
    """Return a key for a message: cut, and without control characters, which would act on a terminal or end a line."""
    text = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in str(key)[: LONGEST_KEY + 1])
    return text if len(text) <= LONGEST_KEY else f"{text[:LONGEST_KEY]}…"


def place_of(keys: Iterable[object]) -> str:
    """Return a place in a document for a message, such as `files.0.size`."""
    place = ".".join(map(printable, keys))
    return place if len(place) <= LONGEST_PLACE else f"{place[:LONGEST_PLACE]}…"
