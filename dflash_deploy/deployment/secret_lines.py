"""Secrets in the raw lines of a `.env`: they must not be shown either if a line cannot be parsed or a name is wrong."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from functools import cache

from dflash_deploy.catalog.settings import all_setting_names
from dflash_deploy.redact import Secret
from dflash_deploy.serve.secrets import SECRET_NAMES

_LINE = re.compile(
    r"(?P<mark>#)?\s*(?:export\s+)?['\"]?(?P<name>[\w.-]{2,64})['\"]?\s*(?P<between>[=:]|\s)\s*(?P<rest>\S.*)"
)
"""A name and what follows it, with the separators that people use."""

_LIKE_A_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|COOKIE|AUTH", re.IGNORECASE)

_GENERATED = re.compile(r"(?<![\w./-])[A-Za-z0-9_-]{43}(?![\w./-])")
"""The shape of a generated key."""

NEARLY = 0.8
"""Similarity to the name of a secret from which another name is taken for a typo of it."""


@cache
def names_a_secret(name: str) -> bool:
    """Return whether the value of a variable is or may be a secret: by its name, or as a typo of such a name."""
    if name in SECRET_NAMES:
        return True
    if name in all_setting_names():
        return False
    near = difflib.get_close_matches(name.upper(), SECRET_NAMES, n=1, cutoff=NEARLY)
    return bool(near) or _LIKE_A_SECRET.search(name) is not None


def secrets_in(text: str) -> Iterator[Secret]:
    """Yield everything in the text of a `.env` that may be a secret, however damaged the text is.

    One value yields several secrets, with and without quotes and a comment: in a damaged line its end is unknown. A
    commented-out line counts too: the old key in it may still be valid elsewhere.
    """
    # a file in UTF-16 has a NUL after each ASCII character
    for line in text.replace("\0", "").lstrip("\ufeff").splitlines():
        found = _LINE.match(line.strip())
        if found is None:
            yield from (Secret(value) for value in _GENERATED.findall(line))
        elif names_a_secret(found["name"]) and not (found["mark"] and found["between"] != "="):
            yield from map(Secret, _values(found["rest"]))
        elif found["name"] not in all_setting_names():
            yield from (Secret(value) for value in _GENERATED.findall(line))


def _values(rest: str) -> set[str]:
    whole = rest.strip()
    ends = {whole, whole.partition(" #")[0].strip(), whole.split()[0]}
    return {value for end in ends for value in (end, end.strip("'\"`,;"))}
