"""The CPU engine's modules, for scripts with the patches on PYTHONPATH."""

import importlib
import sys
from types import ModuleType


def engine_module(name: str) -> ModuleType:
    """A module of the engine, imported as the engine does; as it is installed if the script's arguments say so."""
    if "unpatched" in sys.argv:
        sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "_BeforePatched"]
        # what this process was forked from may have imported it with its patches
        sys.modules.pop(name, None)
    return importlib.import_module(name)
