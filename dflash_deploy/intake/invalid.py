"""The error of all parsers in this package."""

from __future__ import annotations


class Invalid(ValueError):
    """Raised when a text is not valid JSON or YAML, does not match its document, or exceeds a limit.

    The message completes a sentence that begins with the file's name: "is not valid JSON: …".
    """
