"""Unified memory: what ends a process before the machine freezes, swap, and other programs that hold memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

from dflash_deploy.doctor.check import Check, gib
from dflash_deploy.doctor.context import DoctorContext
from dflash_deploy.doctor.machine import needed_memory
from dflash_deploy.host.memory import programs, read_memory, tenants
from dflash_deploy.plan import Plan
from dflash_deploy.plan.memory import GIB
from dflash_deploy.serve.settings import Settings

OOM_DAEMONS = ("earlyoom", "systemd-oomd")
"""Programs that end a process when memory is short; DGX OS has earlyoom (hasso5703/dgx-spark-qwen38@719c17b)."""

SWAPPED = GIB
"""Bytes in swap from which it is in use; idle programs leave less."""

SHOWN, SMALLEST = 4, GIB // 2
"""Tenants that are shown at most, and the bytes that each of them holds at least."""


def unified_memory(subject: DoctorContext, plan: Plan) -> Iterator[Check]:
    """What a machine needs whose GPU uses the system's memory; nothing for other machines."""
    if not plan.profile.hardware.unified or plan.engine.cpu:
        return
    yield _oom_daemon()
    yield _swap()
    need, free = needed_memory(plan, subject.facts.memory_total), subject.facts.memory_available
    if free is not None and free < need and not subject.engine_state.alive:
        yield _tenants(plan, need, free, subject.facts.memory_total)


def _oom_daemon() -> Check:
    found = sorted(programs().intersection(OOM_DAEMONS))
    if found:
        return Check("oom daemon", "ok", f"{' and '.join(found)} runs, and ends a process if memory is short")
    saw = f"neither {' nor '.join(OOM_DAEMONS)} runs: without memory the machine freezes before a process ends"
    return Check("oom daemon", "warning", saw, "install one: `sudo apt install earlyoom`")


def _swap() -> Check:
    memory = read_memory()
    total, free = memory.get("SwapTotal"), memory.get("SwapFree")
    if total is None or free is None:
        return Check("swap", "skipped", "this system does not report its swap")
    used = total - free
    if used < SWAPPED:
        return Check("swap", "ok", f"{gib(used)} of {gib(total)} used" if total else "none")
    saw = f"{gib(used)} of {gib(total)} used: memory was short, and the machine may freeze while it swaps"
    return Check("swap", "warning", saw, "stop what holds memory, then empty it: `sudo swapoff -a && sudo swapon -a`")


def _tenants(plan: Plan, need: float, free: int, total: int | None) -> Check:
    largest = islice((one for one in tenants() if one.memory >= SMALLEST), SHOWN)
    held = "; ".join(f"{one.name} with {gib(one.memory)}" for one in largest)
    saw = f"{gib(free)} available, {gib(need)} planned; the largest programs: {held or 'none above 0.5 GiB'}"
    lower = f"lower {Settings.max_model_len} in .env"
    if plan.engine.kind.utilization is not None and total:
        lower = f"set {Settings.gpu_memory_utilization} in .env to {math.floor(100 * free / total) / 100:g} or less"
    return Check("tenants", "warning", saw, f"stop them (`docker stop NAME`, or end the process), or {lower}")
