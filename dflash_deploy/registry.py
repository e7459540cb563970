"""Features beside the core: packages in `features/`, found by their place. No module of the core imports one by name.

A feature adds commands and the documents they print.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

PACKAGE = "dflash_deploy.features"


@dataclass(frozen=True)
class Feature:
    """What a feature adds. Modules are named, and imported when they are used.

    `commands` maps a command to the module that has it under its name, and to the first sentence of its help.
    `documents` is the module whose DOCUMENTS are the `data` of those commands, `section` the one of `--help`.
    """

    commands: Mapping[str, tuple[str, str]]
    documents: str
    section: str = "More"


@cache
def features() -> tuple[Feature, ...]:
    """The FEATURE of each package in `features/`, in the order of their names."""
    packages = pkgutil.iter_modules([str(Path(__file__).parent / "features")])
    return tuple(import_module(f"{PACKAGE}.{package.name}").FEATURE for package in packages)
