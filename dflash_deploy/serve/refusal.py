"""The only error of `serve`: settings with which no engine can start."""

from __future__ import annotations


class Refused(ValueError):
    """Raised for settings with which an engine cannot start; `hint` says which setting to change."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
