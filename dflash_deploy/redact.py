"""Secrets as a type that prints as redacted, and redaction by value for text that others wrote."""

from __future__ import annotations

import base64
import hashlib
import re
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

        Not for something short: a guess could be held against it.
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
    """Replaces known secrets in text, wherever they stand, also inside of base64."""

    def __init__(self, known: Iterable[Secret] = ()) -> None:
        # a list of keys is also a secret key by key
        parts = {part for secret in known for part in (secret.reveal(), *secret.reveal().split(","))}
        values = {value for value in parts if len(value) >= SHORTEST_SECRET}
        forms = values.union(*map(_in_base64, values))
        # longest first, or the tail of a longer secret that contains a shorter one would stay
        self._values = sorted(forms, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """`text` without any of the secrets."""
        for value in self._values:
            text = text.replace(value, REDACTED)
        return text


_SHAPES = (
    re.compile(r"()\bhf_[A-Za-z0-9]{16,}"),
    re.compile(r"()\bsk-[\w-]{16,}"),
    re.compile(r"(\b[Bb]earer )[^\s'\"]{8,}"),
    re.compile(r"(\bapi[_-]key['\"]?(?:\s*[:=]\s*|\s+)\[?['\"]?)[^\s'\",\]]{8,}"),
    re.compile(r"(\b[A-Z][A-Z0-9_]*_(?:KEY|TOKEN|SECRET|PASSWORD)\s?[=:]\s?)[^\s,]+"),
)
"""How secrets look that nobody told of: tokens of hubs, headers, arguments, variables."""


def redact_by_shape(text: str) -> str:
    """`text` without what looks like a secret, for what is given to others. What is known goes through a Redactor."""
    for shape in _SHAPES:
        text = shape.sub(rf"\1{REDACTED}", text)
    return text


def _in_base64(value: str) -> set[str]:
    """What of a secret stands in the base64 of any text that holds it, whatever comes before and behind it."""
    raw, forms = value.encode(), set[str]()
    for before in range(3):
        # six bits a character: those that share bits with what stands around are not the secret's alone
        whole = -(-8 * before // 6), 8 * (before + len(raw)) // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            forms.add(encode(b"\0" * before + raw).decode()[slice(*whole)])
    return {form for form in forms if len(form) >= SHORTEST_SECRET}
