"""Replaces what SGLang's modules import at their top and this project does not install; no option comes out of it."""

from __future__ import annotations

import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

_ABSENT = ("orjson", "IPython", "IPython.display", "gguf", "soundfile")

# Finds the sources of kernels, which are not among the Python files.
_KERNEL_SOURCES = "sglang.kernels.jit.utils.compile.paths"


class _Stub(ModuleType):
    """A module in which every name can be found."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=f"{self.__name__}.{name}")


def stub_absent() -> None:
    """Replace the packages that are missing here; call it before SGLang is imported."""
    for name in _ABSENT:
        stub: Any = _Stub(name)
        stub.__spec__ = ModuleSpec(name, None)
        if name == "orjson":
            stub.dumps = lambda content, *_, **__: json.dumps(content).encode()
            stub.loads = json.loads
            stub.OPT_NON_STR_KEYS = stub.OPT_SERIALIZE_NUMPY = 0
        sys.modules.setdefault(name, stub)
    paths: Any = ModuleType(_KERNEL_SOURCES)
    paths.KERNEL_PATH = Path("/nowhere")
    paths.DEFAULT_INCLUDE = paths.DEFAULT_CFLAGS = paths.DEFAULT_LDFLAGS = []
    sys.modules[_KERNEL_SOURCES] = paths
