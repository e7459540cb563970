"""The memory of this machine, as the kernel reports it."""

from __future__ import annotations

import re
from pathlib import Path

MEMINFO = Path("/proc/meminfo")


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
