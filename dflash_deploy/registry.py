"""Features beside the core: packages in `features/`, found by their place. No module of the core imports one by name.

A feature adds commands and the documents they print, and it may take part in the work of the core's commands.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dflash_deploy.deployment.directory import Deployment

PACKAGE = "dflash_deploy.features"


@dataclass(frozen=True)
class Happened:
    """Something that a feature saw happen to a deployment: when, and what, in words."""

    at: datetime
    text: str


Around = Callable[["Deployment", str, Callable[[str], None], timedelta], AbstractContextManager[None]]
"""Surrounds the work of a command on an engine: deployment, command, where notes go, the longest time it may take."""

Events = Callable[["Deployment", datetime, datetime], Sequence[Happened] | None]
"""What happened to a deployment between two times; `None` if the feature does not watch it."""


@dataclass(frozen=True)
class Feature:
    """What a feature adds. Modules are named, and imported when they are used.

    `commands` maps a command to the module that has it under its name, and to the first sentence of its help.
    `documents` is the module whose DOCUMENTS are the `data` of those commands, `section` the one of `--help`.
    """

    commands: Mapping[str, tuple[str, str]]
    documents: str
    section: str = "More"
    around: Around | None = None
    events: Events | None = None


@cache
def features() -> tuple[Feature, ...]:
    """The FEATURE of each package in `features/`, in the order of their names."""
    return tuple(_found())


def _found() -> Iterator[Feature]:
    for package in pkgutil.iter_modules([str(Path(__file__).parent / "features")]):
        feature: Feature = import_module(f"{PACKAGE}.{package.name}").FEATURE
        yield feature
