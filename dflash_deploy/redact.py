"""A secret type that prints as redacted, and redaction of known secrets in text from other programs."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from collections.abc import Callable, Iterable, Iterator

Redact = Callable[[str], str]  # takes text and returns it without secrets
REDACTED = "[redacted]"

SHORTEST_SECRET = 8  # values with fewer characters are not redacted: they occur in ordinary text


SHORTEST_KEY = 16  # characters of the shortest key in a list of keys with names


class Secret:
    """A value that only `reveal()` returns; it prints as redacted."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value itself. Use it only for a header or a file of mode 0600."""
        return self._value

    @property
    def fingerprint(self) -> str:
        """The first 8 hex digits of the SHA-256: they distinguish two random keys and reveal neither.

        Do not use it for short values: a guess can be checked against it.
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
    """A new API key: 256 random bits, in characters that no reader of `.env` quotes or expands."""
    return Secret(secrets.token_urlsafe(32))


# User names and passwords in URLs.
_IN_URL = (
    re.compile(r"(://)[^\s/:@'\"<>]{1,500}(?=@)"),
    # a password may have any character; what follows the port of this machine, and `/@`, is a path
    re.compile(
        r"(://)(?!(?:localhost|[\d.]+|\[[\da-fA-F:.]*\]):\d{1,5}[/?#]|[^\s/:@]*:\d{1,5}/@)"
        r"[^\s/:@'\"<>]{0,500}:[^\s'\"<>]{0,500}(?=@)"
    ),
)


class Redactor:
    """Replaces known secrets anywhere in a text, also in base64, and what URLs have before their host."""

    def __init__(self, known: Iterable[Secret] = ()) -> None:
        values = {value for secret in known for value in _parts(secret.reveal()) if len(value) >= SHORTEST_SECRET}
        forms = values.union(*map(_in_base64, values))
        # longest first: replacing a shorter secret inside a longer one would leave the rest of the longer one
        self._values = sorted(forms, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """`text` with every known secret replaced."""
        for value in self._values:
            text = text.replace(value, REDACTED)
        return _redact_urls(text)


def _parts(value: str) -> Iterator[str]:
    """A secret, and each key of a list such as DFLASH_API_KEYS, where what is shorter is a name or a limit."""
    yield value
    for entry in value.split(","):
        yield entry
        yield from (part for part in entry.split(":") if len(part) >= SHORTEST_KEY)


def _redact_urls(text: str) -> str:
    if "://" in text and "@" in text:
        for url in _IN_URL:
            text = url.sub(rf"\1{REDACTED}", text)
    return text


# Shapes of secrets whose value is unknown: tokens, headers, arguments, variables.
_SHAPES = (
    re.compile(r"()-----BEGIN [A-Z ]*PRIVATE KEY-----[A-Za-z0-9+/=\s\\]{0,8000}(?:-----END [A-Z ]*PRIVATE KEY-----)?"),
    re.compile(r"()\b(?:hf_|npm_|gh[opsur]_|github_pat_|glpat-|nvapi-|xox[a-z]-|AKIA|AIza)[\w-]{16,}"),
    re.compile(r"()\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),
    re.compile(r"()\bsk-[\w-]{16,}"),
    re.compile(r"(\b(?i:authorization)['\"]?\s*[:=,]\s*\[?b?['\"]?)[^'\"\r\n]{4,}"),
    re.compile(r"(\b(?i:(?:set-)?cookie)['\"]?\s*[:=,]\s*\[?b?['\"]?)[^'\"\r\n]{4,}"),
    re.compile(r"(\b[Bb]earer )[^\s'\"]{8,}"),
    # base64 of USER:PASSWORD, and not the next word of a sentence
    re.compile(r"(\b[Bb]asic )(?=[a-z]*[A-Z0-9+/=])[A-Za-z0-9+/]{6,}={0,2}"),
    re.compile(r"(\b(?i:api[_-]key)['\"]?(?:\s*[:=,]\s*|\s+)\[?b?['\"]?)[^\s'\",\]]{8,}"),
    re.compile(
        r"(\b(?i:api_?keys?|(?:access|auth|hf|refresh|client)[_-](?:key|token|secret)|[\w-]{0,40}passw(?:or)?d)"
        r"['\"]?\s*[:=]\s*['\"]?)[^\s'\",\]]{4,}"
    ),
    re.compile(r"(\b[A-Z][A-Z0-9_]*_(?:KEYS?|TOKEN|SECRETS?|PASSWORDS?|PASSWD|PASS|PWD)\s?[=:]\s?)\S+"),
    # passwords of other commands: docker login -p, sshpass -p, mysql -p, curl -u USER:
    re.compile(r"(\b(?:login|sshpass|mysql\w*|mariadb)\b[^|;&\r\n]{0,200}?\s-p\s?)[^\s-]\S*"),
    re.compile(r"(\bcurl\b[^|;&\r\n]{0,200}?\s-u\s?[^\s:]{1,80}:)\S+"),
    re.compile(r"(--password[ =])[^\s-]\S*"),
    # numbers of tokens are settings
    re.compile(r"(\b[A-Z][A-Z0-9_]*_TOKENS\s?[=:]\s?)(?!\d+\b)[^\s,]+"),
    re.compile(
        r"([?&;](?i:[\w-]{0,40}(?:token|key|secret|passw(?:or)?d|pwd|sig|signature|credential|auth))=)[^\s&;'\"#]+"
    ),
)


def redact_by_shape(text: str) -> str:
    """`text` without anything that looks like a secret, for files that the user shares.

    A Redactor replaces the known secrets.
    """
    text = _redact_urls(text)
    for shape in _SHAPES:
        text = shape.sub(rf"\1{REDACTED}", text)
    return text


def _in_base64(value: str) -> set[str]:
    """The parts of a secret that appear in the base64 of every text that contains it, at any offset."""
    raw, forms = value.encode(), set[str]()
    for before in range(3):
        # a base64 character holds six bits: the first and last may mix bits of the secret with those of its neighbours
        whole = -(-8 * before // 6), 8 * (before + len(raw)) // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            forms.add(encode(b"\0" * before + raw).decode()[slice(*whole)])
    return {form for form in forms if len(form) >= SHORTEST_SECRET}
