"""Packages whose names come from their modules when one is used first: a command imports only what it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazily(package: str, modules: Mapping[str, tuple[str, ...]]) -> Callable[[str], object]:
    """Return the `__getattr__` of a package. `modules` are the names that each module has; `.module` is one of its own.

    A name must differ from those of the modules: importing `package.module` sets the attribute `module`.
    """
    places = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> object:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(places[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    return get
