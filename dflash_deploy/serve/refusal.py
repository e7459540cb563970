"""The one error of `serve`: settings that no engine can be started with."""

from __future__ import annotations


class Refused(ValueError):
    """Raised when settings cannot become a working engine; `hint` says which setting to change."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
