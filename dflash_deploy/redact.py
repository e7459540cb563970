"""Secrets as a type that prints as redacted, and redaction by value for text that others wrote."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable

REDACTED = "[redacted]"

SHORTEST_SECRET = 8
"""Values below this many characters are not redacted: they occur in ordinary text."""


class Secret:
    """A value that shows itself only when asked by `reveal()`."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value itself, for a header or a file of mode 0600 and for nothing else."""
        return self._value

    @property
    def fingerprint(self) -> str:
        """The first 8 hex digits of the SHA-256, which tell two random keys apart and give neither away.

        Not for keys that somebody thought up: a guess could be held against it.
        """
        return hashlib.sha256(self._value.encode()).hexdigest()[:8]

    def __repr__(self) -> str:
        return f"Secret({REDACTED})" if self._value else "Secret(empty)"

    __str__ = __repr__

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and secrets.compare_digest(self._value, other._value)

    def __hash__(self) -> int:
        return hash(self._value)


def generate_key() -> Secret:
    """A fresh API key: 256 bits from the system's generator, in characters that every reader of `.env` leaves alone."""
    return Secret(secrets.token_urlsafe(32))


class Redactor:
    """Replaces known secrets in text, wherever they stand."""

    def __init__(self, known: Iterable[Secret] = ()) -> None:
        values = {secret.reveal() for secret in known}
        # longest first, or the tail of a longer secret that contains a shorter one would stay
        self._values = sorted((value for value in values if len(value) >= SHORTEST_SECRET), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """`text` without any of the secrets."""
        for value in self._values:
            text = text.replace(value, REDACTED)
        return text
