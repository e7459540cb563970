"""Unified memory while an engine loads: the engine is stopped before the machine freezes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from dflash_deploy.errors import EngineNotReady, EngineStopped
from dflash_deploy.host.memory import available_memory
from dflash_deploy.plan.memory import GIB
from dflash_deploy.serve.settings import Settings

if TYPE_CHECKING:
    from dflash_deploy.plan import Plan
    from dflash_deploy.runtime import Runtime

LEAST_AVAILABLE = 8 * GIB
"""Bytes of MemAvailable below which an engine that loads is stopped.

A DGX Spark hung after 7 GiB were left (vllm-project/vllm#46307). DGX OS runs earlyoom, which ends the largest process
at about 8 GB (hasso5703/dgx-spark-qwen38@719c17b, docs/gb10-memory.md), and would name no cause.
"""

LOOK = 0.1
"""Seconds between two readings of the memory: on a DGX Spark it is gone within seconds (vllm-project/vllm#56824)."""


def is_short(available: int | None, least: int) -> bool:
    """Whether the available bytes are fewer than the least; `False` if the system does not report them."""
    return available is not None and available < least


def guard_for(plan: Plan, runtime: Runtime) -> MemoryGuard | None:
    """The guard of an engine that this command started; `None` if its GPU has memory of its own."""
    if not plan.profile.hardware.unified or plan.engine.cpu:
        return None
    share = plan.settings.gpu_memory_utilization
    lower = f"{Settings.max_model_len} or {Settings.max_num_seqs}"
    if plan.engine.kind.utilization is not None:
        now = "" if share is None else f" (now {share:g})"
        lower = f"{Settings.gpu_memory_utilization}{now} or {Settings.max_num_batched_tokens}"
    hint = f"lower {lower} in .env; `dflash-deploy doctor` shows what else holds memory"
    return MemoryGuard(lambda: runtime.halt(at_once=True), hint)


class MemoryGuard:
    """Reads MemAvailable in a thread, since the command that waits may itself wait for an answer."""

    def __init__(
        self,
        stop: Callable[[], None],
        hint: str,
        *,
        least: int = LEAST_AVAILABLE,
        available: Callable[[], int | None] = available_memory,
    ) -> None:
        """`stop` kills the engine, and `hint` says what to change. `least` and `available` are in bytes."""
        self._stop, self._hint, self._least, self._available = stop, hint, least, available
        self._left: int | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="memory guard", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._over.set()
        self._thread.join()

    def check(self, when: str) -> None:
        """Raise EngineStopped if the engine was stopped; `when` says in which phase of the start."""
        if self._left is not None:
            raise EngineStopped(
                f"stopped the engine {when}: only {self._left / GIB:.1f} GiB of the machine's memory were left, "
                f"and below {self._least / GIB:.1f} GiB the machine may freeze",
                hint=self._hint,
            )

    def _look(self) -> None:
        while not self._over.wait(LOOK):
            left = self._available()
            if is_short(left, self._least):
                self._left = left
                # the command that waits stops it again, and reports
                with suppress(EngineNotReady):
                    self._stop()
                return
