"""An endpoint that is named on the command line: its address, and the file with its key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.errors import BadInput

if TYPE_CHECKING:
    from dflash_deploy.redact import Secret

KeyFile = Annotated[Path | None, typer.Option("--key-file", help="A file with the key of --url, and nothing else.")]


def address_of(url: str) -> str:
    """An address without the /v1 that clients have at its end. Raises BadInput."""
    from httpx import URL, InvalidURL

    try:
        place = URL(url)
    except InvalidURL:
        place = URL("")
    if place.scheme not in {"http", "https"} or not place.host or place.userinfo:
        # not shown: it may hold a password
        raise BadInput("that is no address of an endpoint", hint="like this: http://box:8000, without a key in it")
    return url.rstrip("/").removesuffix("/v1")


def key_in(file: Path | None) -> Secret:
    """The key that a file holds, an empty one without a file. Raises BadInput."""
    from dflash_deploy.redact import Secret

    if file is None:
        return Secret("")
    hint = "it is a file that holds the key alone, on one line"
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise BadInput(f"{file} cannot be read: {problem}", hint=hint) from None
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise BadInput(f"{file} holds nothing that could be a key", hint=hint)
    return Secret(key)
