"""Start, stop and inspect the engine, in a container or as a process, behind one protocol."""

from dflash_deploy.runtime.protocol import EngineState, LogPage, Runtime
from dflash_deploy.runtime.select import runtime_for, runtime_seen

__all__ = ["EngineState", "LogPage", "Runtime", "runtime_for", "runtime_seen"]
