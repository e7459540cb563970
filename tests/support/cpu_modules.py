"""The CPU engine's modules, for scripts with the patches on PYTHONPATH."""

import importlib
import sys
from types import ModuleType


def engine_module(name: str) -> ModuleType:
    """A module of the engine, imported as the engine does; as it is installed if the script's arguments say so."""
    if "unpatched" in sys.argv:
        sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "_BeforePatched"]
    return importlib.import_module(name)
