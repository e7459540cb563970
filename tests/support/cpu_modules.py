"""The CPU engine's modules, for scripts in a process that has its patches."""

import importlib
import sys
from types import ModuleType


def engine_module(name: str) -> ModuleType:
    """A module of the engine, imported as the engine does; as it is installed if the script's arguments say so."""
    if "unpatched" in sys.argv:
        _forget_patches()
    return importlib.import_module(name)


def _forget_patches() -> None:
    """Let patched modules be imported as they are installed, also those that have been imported with their patches."""
    for finder in [one for one in sys.meta_path if type(one).__name__ == "_BeforePatched"]:
        sys.meta_path.remove(finder)
        for name in sys.modules["sitecustomize"]._PATCHES:
            sys.modules.pop(name, None)
