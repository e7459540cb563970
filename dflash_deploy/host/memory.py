"""The memory of this machine, as the kernel reports it."""

from __future__ import annotations

import os
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.host.containers import container_names
from dflash_deploy.host.gpu_processes import container_of

PROC = Path("/proc")
MEMINFO = PROC / "meminfo"


def read_memory(meminfo: Path = MEMINFO) -> dict[str, int]:
    """The lines of /proc/meminfo in bytes. MemAvailable is the memory that a new process can allocate."""
    try:
        text = meminfo.read_text(encoding="ascii")
    except OSError:
        return {}
    return {name: int(kib) * 1024 for name, kib in re.findall(r"^(\w+): +(\d+) kB$", text, re.MULTILINE)}


def available_memory() -> int | None:
    """Bytes that a new process can allocate now; `None` if the system does not report it."""
    return read_memory().get("MemAvailable")


@dataclass(frozen=True)
class Tenant:
    """A process, or a container with all of its processes, and the bytes of memory that it holds (RSS).

    Pages that processes share are counted for each of them. Memory that CUDA allocates is not included.
    """

    name: str
    memory: int


def tenants(proc: Path = PROC) -> tuple[Tenant, ...]:
    """What holds memory on this machine, the largest first."""
    held: Counter[tuple[str, str]] = Counter()
    for statm in proc.glob("[0-9]*/statm"):
        # a process may end meanwhile
        with suppress(OSError, ValueError, IndexError):
            size = int(statm.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
            pid, identity = int(statm.parent.name), container_of(int(statm.parent.name), proc=proc)
            held[identity, "" if identity else f"{_program(statm.parent)} (process {pid})"] += size
    names = container_names(identity for identity, _ in held if identity)
    return tuple(
        Tenant(process or f"container {names.get(identity, identity[:12])}", size)
        for (identity, process), size in held.most_common()
    )


def programs(proc: Path = PROC) -> frozenset[str]:
    """The names of the programs that run, as the kernel has them: at most 15 characters."""
    return frozenset(_program(process) for process in proc.glob("[0-9]*"))


def _program(process: Path) -> str:
    try:
        return (process / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
