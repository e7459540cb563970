"""Endpoints that are named by their URL: without a deployment, or beside one."""

from __future__ import annotations

from pathlib import Path

from httpx import URL, InvalidURL

from dflash_deploy.errors import BadInput, FileRefused
from dflash_deploy.intake.files import read_argument, shown
from dflash_deploy.redact import Secret
from dflash_deploy.serve.field import is_host

# The hint if an endpoint without a deployment does not answer as expected.
CHECK_URL = "check the URL, without /v1, and that --key-file holds its API key"

LARGEST_KEY_FILE = 4096  # bytes of a file with an API key


def address_of(url: str) -> str:
    """A base URL without the /v1 that clients add. Raises BadInput."""
    try:
        place = URL(url)
    except (InvalidURL, UnicodeEncodeError):
        # bytes that are not text, or no URL
        place = URL("")
    # as it is sent: a name in another script is encoded (IDNA)
    host = place.raw_host.decode("ascii", "replace")
    is_port = place.port is None or 0 < place.port < 65536
    if place.scheme not in {"http", "https"} or not is_host(host) or place.userinfo or not is_port:
        # not shown: it may hold a password
        missing = "" if "://" in url else "begin with http:// or https://, "
        raise BadInput(
            "not a valid URL: expected http://HOST:PORT, without credentials", hint=f"{missing}such as http://box:8000"
        )
    return url.rstrip("/").removesuffix("/v1")


def key_in(file: Path | None) -> Secret:
    """The API key in a file; an empty one without a file. Raises BadInput."""
    if file is None:
        return Secret("")
    hint = "the file must hold the key and nothing else, on one line"
    try:
        key = read_argument(file, limit=LARGEST_KEY_FILE).strip()
    except FileRefused as problem:
        raise BadInput(f"{shown(file)} cannot be read: {problem.message}", hint=hint) from None
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise BadInput(f"{file} does not hold a valid key", hint=hint)
    return Secret(key)
