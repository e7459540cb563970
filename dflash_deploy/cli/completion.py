"""What the shell completes: names of the catalog, checks, clients and deployments. An error completes nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

from dflash_deploy.errors import DeployError

MOST_ENTRIES = 1000
"""Entries of a directory that are examined."""


def _completing(names: Callable[[str], Iterable[str]]) -> Callable[[str], list[str]]:
    """Make a completion of a function: the names that begin with what is typed."""

    @functools.wraps(names)
    def complete(incomplete: str) -> list[str]:
        try:
            return [name for name in names(incomplete) if name.startswith(incomplete)]
        except (DeployError, OSError, ValueError):
            return []

    return complete


@_completing
def profiles(incomplete: str) -> Iterable[str]:
    """Return the names of profiles."""
    from dflash_deploy.catalog import load_catalog  # noqa: PLC0415 - only completion needs it

    return load_catalog().profiles


@_completing
def models(incomplete: str) -> Iterable[str]:
    """Return the names of models."""
    from dflash_deploy.catalog import load_catalog  # noqa: PLC0415 - only completion needs it

    return load_catalog().pairs


@_completing
def engines(incomplete: str) -> Iterable[str]:
    """Return the names of engines and of their releases."""
    from dflash_deploy.catalog import load_catalog  # noqa: PLC0415 - only completion needs it
    from dflash_deploy.serve.engines import ENGINES  # noqa: PLC0415

    return {**ENGINES, **load_catalog().engines}


@_completing
def recipes(incomplete: str) -> Iterable[str]:
    """Return the names of recipes."""
    from dflash_deploy.catalog import load_catalog  # noqa: PLC0415 - only completion needs it

    return dict.fromkeys(one.name for profile in load_catalog().profiles.values() for one in profile.recipes)


@_completing
def checks(incomplete: str) -> Iterable[str]:
    """Return the names of checks, after those that are already written with commas between."""
    from dflash_deploy.checks import CHECKS  # noqa: PLC0415 - only completion needs it

    written, comma, _ = incomplete.rpartition(",")
    taken = written.split(",")
    return (f"{written}{comma}{name}" for name in CHECKS if name not in taken)


@_completing
def clients(incomplete: str) -> Iterable[str]:
    """Return the names of clients."""
    from dflash_deploy.connect import clients as known  # noqa: PLC0415 - only completion needs it

    return known()


@_completing
def deployments(incomplete: str) -> Iterator[str]:
    """Yield directories: a deployment by its name, any other one with a slash, so that its entries come next."""
    from dflash_deploy.deployment import Deployment  # noqa: PLC0415 - only completion needs it

    above, slash, name = incomplete.rpartition("/")
    for place in islice(Path(f"{above}{slash}" or ".").expanduser().iterdir(), MOST_ENTRIES):
        if place.is_dir() and (name.startswith(".") or not place.name.startswith(".")):
            yield f"{above}{slash}{place.name}{'' if Deployment(place).exists() else '/'}"
