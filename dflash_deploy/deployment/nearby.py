"""Where a deployment is, as the current directory sees it: for hints, and for commands that a report names."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

MOST_ENTRIES = 1000
"""Entries of a directory that are examined."""

MOST_NAMED = 3
"""Deployments that a hint names."""

CREATE = "create one with `dflash-deploy init`"


def hint_without_deployment(directory: Path) -> str:
    """What to do in a directory without a deployment: restore its `.env`, name one that is near, or create one."""
    if (directory / ".dflash").is_dir():
        here = there(directory)
        return (
            f"its .env is missing: put it back, or write another one with `dflash-deploy init{here}`; "
            f"then `dflash-deploy restart{here}` gives the engine its key"
        )
    found = list(islice(_near(directory), MOST_NAMED))
    if not found:
        return CREATE
    options = " or ".join(f"`{dir_option(place)}`" for place in found)
    return f"name one with {options}, or {CREATE}"


def _near(directory: Path) -> Iterator[Path]:
    """The directory above and those below, if they have a deployment; in the order of their names."""
    with suppress(OSError):
        yield from filter(_has_deployment, directory.parents[:1])
        yield from filter(_has_deployment, sorted(islice(directory.iterdir(), MOST_ENTRIES)))


def _has_deployment(place: Path) -> bool:
    """Return whether a directory has settings and the state of a deployment; other projects have a `.env` too."""
    with suppress(OSError):
        return (place / ".env").is_file() and (place / ".dflash").is_dir()
    return False


def dir_option(directory: Path) -> str:
    """Return `--dir DIRECTORY` as it is written in the current directory; a deployment there needs `--dir .`."""
    here, place = (Path(os.path.realpath(path)) for path in (Path(), directory))
    return f"--dir {shlex.quote(str(place.relative_to(here) if place.is_relative_to(here) else directory))}"


def there(directory: Path) -> str:
    """Return what a command needs to work on a directory: ` --dir DIRECTORY`, nothing in the directory itself."""
    option = dir_option(directory)
    return "" if option == "--dir ." else f" {option}"
