"""One module per engine: its arguments, how it is launched, and what the rest of the program needs to know about it.

To add an engine, write a subclass of `Engine` in a module of its own and add it to `ENGINES`; CONTRIBUTING.md lists
the data that belongs to it.
"""

from collections.abc import Mapping

from dflash_deploy.serve.engines.base import Build, Engine, Launch
from dflash_deploy.serve.engines.llamacpp import Llamacpp, LlamacppBuun
from dflash_deploy.serve.engines.sglang import Sglang
from dflash_deploy.serve.engines.vllm import Vllm

# Every engine by its name in the catalog.
ENGINES: Mapping[str, Engine] = {engine.name: engine for engine in (Vllm(), Sglang(), Llamacpp(), LlamacppBuun())}

DEFAULT = "vllm"  # the engine of an image that does not say which one it holds, and of the native runtime
__all__ = ["DEFAULT", "ENGINES", "Build", "Engine", "Launch"]
