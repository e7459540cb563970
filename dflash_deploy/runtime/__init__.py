"""Start, stop and inspect the engine, in a container or as a process, behind one protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_deploy.lazy import lazily

if TYPE_CHECKING:
    from dflash_deploy.runtime.protocol import EngineState, LogPage, Runtime
    from dflash_deploy.runtime.select import runtime_for, runtime_seen
else:
    __getattr__ = lazily(
        __name__,
        {
            ".protocol": ("EngineState", "LogPage", "Runtime"),
            ".select": ("runtime_for", "runtime_seen"),
        },
    )

__all__ = ["EngineState", "LogPage", "Runtime", "runtime_for", "runtime_seen"]
